# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
#     "peft>=0.18",
#     "trackio>=0.18",
# ]
# ///
"""SFT as a job: model and data come as variables, the adapter goes to the Hub."""

import os
import sys

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

for name in ("HF_TOKEN", "BASE_MODEL", "TRAIN_DATASET"):
    if not os.environ.get(name):
        sys.exit(f"{name} is not set")
BASE = os.environ["BASE_MODEL"]
DATASET = os.environ["TRAIN_DATASET"]
SPLIT = os.environ.get("TRAIN_SPLIT", "train")
print(f"{BASE=} {DATASET=} {SPLIT=}")

args = SFTConfig(
    output_dir="capybara-adapter",
    push_to_hub=True,
    hub_model_id="acme-research/capybara-adapter",
    hub_strategy="every_save",
    bf16=True,
    learning_rate=2e-4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
    report_to="trackio",
)
print(args)
trainer = SFTTrainer(
    model=BASE,
    args=args,
    train_dataset=load_dataset(DATASET, split=SPLIT),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.push_to_hub()
