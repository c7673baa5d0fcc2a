"""GRPO on sums of our own; the answers travel with the prompts."""

import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def to_prompt(row):
    """Make a conversation; `final_answer` stays as it is."""
    return {"prompt": [{"role": "user", "content": row["question"] + " Answer with a number."}]}


def right_number(completions, final_answer, **kwargs):
    """Return 1 where the last number is the answer."""
    found = [re.findall(r"-?\d+", turn[0]["content"]) for turn in completions]
    return [float(bool(numbers) and numbers[-1] == want) for numbers, want in zip(found, final_answer, strict=True)]


def brief(completions, **kwargs):
    """Prefer short answers a little."""
    return [-0.001 * len(turn[0]["content"]) for turn in completions]


sums = load_dataset("json", data_files="data/sums.jsonl", split="train").map(to_prompt, remove_columns=["question"])
args = GRPOConfig(
    output_dir="grpo-sums",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=128,
    learning_rate=1e-6,
    beta=0.01,
    max_steps=200,
    logging_steps=1,
    save_steps=50,
    save_total_limit=2,
    log_completions=True,
)
print(args)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=[right_number, brief], args=args, train_dataset=sums
)
trainer.train()
trainer.save_model()
