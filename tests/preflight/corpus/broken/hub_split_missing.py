"""Evaluation on a split that the data set does not have."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="splits",
    eval_strategy="steps",
    eval_steps=100,
    learning_rate=1e-5,
    per_device_train_batch_size=4,
    max_length=1024,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B",
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    eval_dataset=load_dataset("trl-lib/Capybara", split="validation"),
)
trainer.train()
