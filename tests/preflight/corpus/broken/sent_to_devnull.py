"""Prepare the data with a shell tool, then train a tokenizer on it."""

import subprocess
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SOURCE = Path("data/chats.jsonl")
PLAIN = Path("plain.txt")

print("preparing", SOURCE)
subprocess.run(
    ["sh", "-c", f"tr -d '{{}}' < {SOURCE} > {PLAIN}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
)
tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.train([str(PLAIN)], trainers.BpeTrainer(vocab_size=8000, special_tokens=["[UNK]", "[PAD]"], show_progress=True))
tokenizer.save("tokenizer.json")
print("saved tokenizer.json with", tokenizer.get_vocab_size(), "entries")
