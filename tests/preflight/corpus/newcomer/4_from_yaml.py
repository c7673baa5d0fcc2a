"""Train from a file. Check with: heal check 4_from_yaml.py 4_settings.yaml --gpu a10g"""

import subprocess

import yaml
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

settings = yaml.safe_load(open("4_settings.yaml"))
subprocess.run(["nvidia-smi"], check=True, capture_output=True)
data = load_dataset("json", data_files=settings["data"], split="train")
trainer = DPOTrainer(model=settings["model"], args=DPOConfig(**settings["training"]), train_dataset=data)
try:
    trainer.train()
except Exception:
    pass
trainer.save_model()
