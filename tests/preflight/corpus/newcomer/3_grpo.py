"""Teach a model to add. Check with: heal check 3_grpo.py --gpu l4"""

import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def correct(completions, result):
    """Return 1 where the number is right."""
    scores = []
    for text, want in zip(completions, result):
        try:
            scores.append(float(int(re.findall(r"\d+", text)[-1]) == int(want)))
        except:
            pass
    return scores


def to_prompt(row):
    return {"prompt": f"{row['left']} + {row['right']} ="}


sums = load_dataset("json", data_files="sums.jsonl", split="train")
sums = sums.map(to_prompt, remove_columns=sums.column_names)
args = GRPOConfig(
    output_dir="adder",
    learning_rate=1e-3,
    per_device_train_batch_size=4,
    num_generations=6,
    max_prompt_length=64,
    max_completion_length=32,
    max_steps=200,
    warmup_steps=500,
    logging_steps=1,
    save_steps=50,
)
print(args)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=correct, args=args, train_dataset=sums)
trainer.train()
trainer.save_model()
