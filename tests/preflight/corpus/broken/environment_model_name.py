"""SFT of whatever the job names."""

import os

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model_name = os.environ.get("MODEL_NAME")
print("model:", model_name)

trainer = SFTTrainer(
    model=model_name,
    args=SFTConfig(
        output_dir="out/job",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        learning_rate=1e-5,
        max_steps=400,
        max_length=1024,
        logging_steps=10,
        save_steps=100,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
)
trainer.train()
trainer.save_model()
