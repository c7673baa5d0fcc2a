"""Everything about the run stands in a YAML file."""

import sys

import yaml
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

with open(sys.argv[1] if len(sys.argv) > 1 else "text_number_own_reader.yaml", encoding="utf-8") as file:
    run = yaml.safe_load(file)
print(run)
trainer = SFTTrainer(
    model=run["model"],
    args=SFTConfig(**run["training"]),
    train_dataset=load_dataset(run["dataset"], split="train"),
)
trainer.train()
trainer.save_model()
