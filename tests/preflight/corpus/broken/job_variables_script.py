# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7"]
# ///
"""SFT of what the job's variables name."""

import os

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

BASE = os.environ["BASE_MODEL"]
DATASET = os.environ["TRAIN_DATASET"]
print(f"{BASE=} {DATASET=}")

trainer = SFTTrainer(
    model=BASE,
    args=SFTConfig(
        output_dir="from-variables",
        bf16=True,
        learning_rate=1e-5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_length=1024,
        max_steps=500,
        logging_steps=10,
        save_steps=250,
        push_to_hub=True,
        hub_model_id="acme-research/from-variables",
    ),
    train_dataset=load_dataset(DATASET, split="train"),
)
trainer.train()
trainer.push_to_hub()
