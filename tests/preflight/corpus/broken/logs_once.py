"""A run that speaks once."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="quiet",
    max_steps=2000,
    logging_steps=5000,
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    max_length=512,
    save_steps=500,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train()
trainer.save_model()
