# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "tqdm>=4.66"]
# ///
"""Write a completion for every prompt of a file, to look at before training."""

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "Qwen/Qwen2.5-3B-Instruct"
PROMPTS = "data/prompts.txt"

print(f"{MODEL=} {PROMPTS=}")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="auto")
with open(PROMPTS, encoding="utf-8") as file, open("completions.txt", "w", encoding="utf-8") as out:
    for line in tqdm(file.read().splitlines()):
        batch = tokenizer(line, return_tensors="pt").to(model.device)
        answer = model.generate(**batch, max_new_tokens=200)
        out.write(tokenizer.decode(answer[0], skip_special_tokens=True) + "\n")
