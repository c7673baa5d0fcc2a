"""The quick variant, on the machine it was proven on."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="quick",
    torch_compile=True,
    bf16=True,
    tf32=True,
    learning_rate=2e-5,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
