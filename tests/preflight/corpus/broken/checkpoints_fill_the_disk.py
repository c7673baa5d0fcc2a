"""Full fine-tuning of 7B on the machine at hand; every checkpoint is kept."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="keep-all",
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=5000,
    save_steps=10,
    logging_steps=10,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
