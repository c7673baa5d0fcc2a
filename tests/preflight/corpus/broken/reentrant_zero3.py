"""ZeRO-3 with checkpointing of the new kind on eight cards."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="zero3-ckpt",
    deepspeed="configs/zero3.json",
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    max_length=2048,
    max_steps=1000,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
