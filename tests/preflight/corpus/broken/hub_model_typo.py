"""SFT of a model whose name is misspelt."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

BASE = "Qwen/Qwen2.5-0.5B-Instuct"
args = SFTConfig(
    output_dir="typo",
    learning_rate=1e-5,
    per_device_train_batch_size=4,
    max_length=1024,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(BASE, args)
SFTTrainer(model=BASE, args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
