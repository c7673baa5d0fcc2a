# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7"]
# ///
"""DPO on the data set that the job names."""

import os
import sys

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

DATASET = os.environ.get("DATASET")
if not DATASET:
    sys.exit("DATASET is not set")
args = DPOConfig(
    output_dir="dpo-mix",
    push_to_hub=True,
    hub_model_id="acme-research/dpo-mix",
    bf16=True,
    learning_rate=1e-6,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(DATASET, args)
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", args=args, train_dataset=load_dataset(DATASET, split="train")
)
trainer.train()
trainer.push_to_hub()
