"""Full fine-tuning of 7B on eight H200; every checkpoint is kept."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="keep-all",
    fsdp=True,
    fsdp_config={"version": 2, "activation_checkpointing": True},
    gradient_checkpointing=False,
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    max_length=2048,
    max_steps=5000,
    save_steps=10,
    logging_steps=10,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
