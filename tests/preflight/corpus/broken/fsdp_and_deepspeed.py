"""Sharded twice."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="sharded",
    fsdp=True,
    fsdp_config={"version": 2, "reshard_after_forward": True},
    deepspeed="configs/zero3.json",
    bf16=True,
    gradient_checkpointing=False,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    max_length=1024,
    max_steps=1000,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-3B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
