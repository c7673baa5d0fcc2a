"""GRPO with long answers and a large vocabulary on a T4."""

import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

PROMPTS_AT_ONCE = 8
ANSWERS_EACH = 16
LONGEST_ANSWER = 2048


def has_box(completions, **kwargs):
    """Return 1 for an answer in a box."""
    return [float(re.search(r"\\boxed\{.+\}", turn[0]["content"]) is not None) for turn in completions]


config = GRPOConfig(
    output_dir="grpo-long",
    fp16=True,
    per_device_train_batch_size=PROMPTS_AT_ONCE * ANSWERS_EACH,
    num_generations=ANSWERS_EACH,
    max_completion_length=LONGEST_ANSWER,
    learning_rate=1e-6,
    max_steps=300,
    logging_steps=1,
    save_steps=50,
    save_total_limit=2,
    log_completions=True,
)
print(config)
trainer = GRPOTrainer(
    model="models/chat-500m",
    reward_funcs=has_box,
    args=config,
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
)
trainer.train()
trainer.save_model()
