"""One card, and ZeRO-3 because the tutorial had it."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="zero3-alone",
    deepspeed="configs/zero3.json",
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=1,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
