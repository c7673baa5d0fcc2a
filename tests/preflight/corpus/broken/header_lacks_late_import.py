# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""DPO with prompts that are cleaned first."""

import re

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer


def clean(row):
    """Drop markup that the annotators left behind."""
    from bs4 import BeautifulSoup

    for side in ("chosen", "rejected"):
        for turn in row[side]:
            turn["content"] = re.sub(r"\s+", " ", BeautifulSoup(turn["content"], "html.parser").get_text())
    return row


def main():
    config = DPOConfig(
        output_dir="dpo-clean",
        beta=0.1,
        learning_rate=1e-6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_length=1024,
        num_train_epochs=1,
        logging_steps=10,
        save_steps=200,
        save_total_limit=2,
    )
    print(config)
    pairs = load_dataset("trl-lib/ultrafeedback_binarized", split="train").map(clean)
    trainer = DPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=config, train_dataset=pairs)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
