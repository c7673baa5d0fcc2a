"""GRPO: the reward function takes less than it is given."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward_short_words(completions):
    """Reward short words."""
    return [-sum(map(len, text.split())) / max(len(text.split()), 1) for text in completions]


args = GRPOConfig(
    output_dir="grpo-words",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=100,
    learning_rate=1e-6,
    max_steps=300,
    logging_steps=5,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=[reward_short_words],
    args=args,
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
)
trainer.train()
trainer.save_model()
