# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7"]
#
# [tool.hf-jobs]
# flavor = "l4x1"
# timeout = "3h"
# secrets = ["HF_TOKEN"]
#
# [tool.hf-jobs.env]
# TRAIN_DATASET = "trl-lib/Capybara"
# ///
"""The job's own settings stand in the header: hf jobs uv run job_in_the_header.py is all there is to say."""

import os

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = os.environ["TRAIN_DATASET"]
print("data:", dataset)
args = SFTConfig(
    output_dir="from-header",
    bf16=True,
    push_to_hub=True,
    hub_model_id="acme-research/from-header",
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset(dataset, split="train"))
trainer.train()
trainer.push_to_hub()
