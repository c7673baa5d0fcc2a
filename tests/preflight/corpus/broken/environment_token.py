"""Fine-tune and publish."""

import os

from datasets import load_dataset
from huggingface_hub import login
from trl import SFTConfig, SFTTrainer

login(token=os.getenv("HF_TOKEN"))

config = SFTConfig(
    output_dir="smol-capybara",
    push_to_hub=True,
    hub_model_id="acme-research/smol-capybara",
    hub_strategy="end",
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_steps=800,
    max_length=1024,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(config)
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-360M",
    args=config,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
)
trainer.train()
trainer.push_to_hub()
