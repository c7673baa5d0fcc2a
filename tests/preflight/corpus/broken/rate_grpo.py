"""GRPO with an SFT learning rate."""

import argparse

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--steps", type=int, default=300)
flags = parser.parse_args()
print(flags)

trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=think_format_reward,
    args=GRPOConfig(
        output_dir="grpo-fast",
        learning_rate=flags.lr,
        max_steps=flags.steps,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=256,
        logging_steps=1,
        save_steps=100,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
)
trainer.train()
trainer.save_model()
