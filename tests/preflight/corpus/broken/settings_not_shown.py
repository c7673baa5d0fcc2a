"""KTO with many knobs, none of which is ever shown."""

import argparse

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
parser.add_argument("--beta", type=float, default=0.1)
parser.add_argument("--lr", type=float, default=1e-6)
parser.add_argument("--steps", type=int, default=1000)
flags = parser.parse_args()

trainer = KTOTrainer(
    model=flags.model,
    args=KTOConfig(
        output_dir="kto-knobs",
        beta=flags.beta,
        learning_rate=flags.lr,
        max_steps=flags.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_length=1024,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/kto-mix-14k", split="train"),
)
trainer.train()
trainer.save_model()
