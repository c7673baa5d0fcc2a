"""GRPO: the answers are dropped before the reward function can see them."""

import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def to_prompt(row):
    """Make a conversation of a question."""
    return {"prompt": [{"role": "user", "content": row["question"]}]}


def right_number(completions, final_answer, **kwargs):
    """Return 1 where the last number is the answer."""
    found = [re.findall(r"-?\d+", turn[0]["content"]) for turn in completions]
    return [float(bool(numbers) and numbers[-1] == want) for numbers, want in zip(found, final_answer, strict=True)]


questions = load_dataset("json", data_files="data/questions.jsonl", split="train")
questions = questions.map(to_prompt, remove_columns=["question", "final_answer"])
args = GRPOConfig(
    output_dir="grpo-numbers",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=128,
    learning_rate=1e-6,
    max_steps=200,
    logging_steps=1,
    save_steps=50,
    save_total_limit=2,
)
print(args)
GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=right_number, args=args, train_dataset=questions
).train()
