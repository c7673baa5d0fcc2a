# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers==4.41.2",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""Preference tuning; transformers is held back because of an older project."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

print("DPO on UltraFeedback")
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=DPOConfig(
        output_dir="dpo",
        beta=0.1,
        learning_rate=5e-7,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_length=1024,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.save_model()
