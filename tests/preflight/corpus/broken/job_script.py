# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7", "peft>=0.18"]
# ///
"""SFT as a job: the adapter goes to the Hub."""

import os
import sys

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

if "HF_TOKEN" not in os.environ:
    sys.exit("HF_TOKEN is not set: give it as a secret of the job")

args = SFTConfig(
    output_dir="capybara-adapter",
    push_to_hub=True,
    hub_model_id="acme-research/capybara-adapter",
    bf16=True,
    learning_rate=2e-4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-1.5B",
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.push_to_hub()
