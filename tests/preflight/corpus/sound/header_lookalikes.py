# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl[peft,quantization]>=1.0",
#     "datasets>=4.7",
#     "scikit-learn>=1.5",
#     "pyyaml>=6.0",
#     "python-dotenv>=1.0",
#     "pillow>=10.0",
# ]
# ///
"""Modules whose packages are called otherwise, come with another, lie beside this file, or may be absent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import yaml
from datasets import load_dataset
from dotenv import load_dotenv
from peft import LoraConfig
from PIL import Image
from sklearn.metrics import f1_score
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

from house_rules import tidy

if TYPE_CHECKING:
    from pandas import DataFrame

try:
    import wandb
except ImportError:
    wandb = None


def summary(table: DataFrame) -> str:
    """Return figures of a table."""
    return json.dumps({"rows": len(table), "f1": f1_score(np.ones(2), np.ones(2))})


def main() -> None:
    load_dotenv()
    print("wandb" if wandb is not None else "no wandb", yaml.__version__, Image.__version__)
    args = SFTConfig(
        output_dir="lookalikes",
        bf16=True,
        learning_rate=2e-4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_length=1024,
        max_steps=500,
        logging_steps=10,
        save_steps=100,
        save_total_limit=2,
    )
    print(args)
    trainer = SFTTrainer(
        model="Qwen/Qwen2.5-3B",
        args=args,
        train_dataset=load_dataset("trl-lib/Capybara", split="train").map(tidy),
        quantization_config=BitsAndBytesConfig(load_in_4bit=True),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
