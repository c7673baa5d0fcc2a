"""Makes a tiny model that is known to be good, and trains it for two steps: where that fails, the environment is at fault.

    python known_good_training.py FOLDER

It runs in the user's own Python and needs torch and transformers only. The model is a two-layer Llama whose tokens are bytes, so
that it takes any text.
"""

from __future__ import annotations

import os
import sys
from typing import Any

SPECIAL = ("<pad>", "<eos>", "<unk>")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> Any:
    """Return a tokenizer whose words are the 256 bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    raw = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=[], unk_token="<unk>"))  # noqa: S106
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    names = ["input_ids", "attention_mask"]
    pad, eos, unknown = SPECIAL
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=pad, eos_token=eos, unk_token=unknown, model_input_names=names
    )
    made.chat_template = TEMPLATE
    return made


def model(size: int) -> Any:
    """Return a Llama of some 60,000 parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip


def main() -> None:
    """Make it, save it and train it."""
    from transformers import Trainer, TrainingArguments

    folder = sys.argv[1]
    words = tokenizer()
    made = model(len(words))
    made.save_pretrained(folder)
    words.save_pretrained(folder)
    ids = words("the small cat sat on the mat")["input_ids"]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids} for _ in range(8)]
    arguments = TrainingArguments(
        output_dir=os.path.join(folder, "trained"), max_steps=2, per_device_train_batch_size=2, report_to="none",
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=made, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
