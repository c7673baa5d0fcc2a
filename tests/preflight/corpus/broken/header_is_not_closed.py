# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
"""A reward model for summaries, as a uv script."""

from datasets import load_dataset
from trl import RewardConfig, RewardTrainer

SETTINGS = dict(
    output_dir="reward-summaries",
    learning_rate=1e-5,
    per_device_train_batch_size=8,
    num_train_epochs=1,
    logging_steps=25,
    save_steps=500,
    save_total_limit=2,
    max_length=768,
)
print("settings:", SETTINGS)

trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=RewardConfig(**SETTINGS),
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.save_model()
