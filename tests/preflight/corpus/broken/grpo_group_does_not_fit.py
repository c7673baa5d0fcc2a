"""GRPO for short summaries."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

WANTED = 120


def close_to_length(completions, **kwargs):
    """Reward summaries of about the wanted length."""
    return [-abs(WANTED - len(text)) / WANTED for text in completions]


trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=close_to_length,
    args=GRPOConfig(
        output_dir="grpo-tldr",
        per_device_train_batch_size=6,
        num_generations=8,
        max_completion_length=128,
        learning_rate=1e-6,
        max_steps=500,
        logging_steps=5,
        save_steps=100,
        save_total_limit=2,
        log_completions=True,
    ),
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
)
print(trainer.args)
trainer.train()
trainer.save_model()
