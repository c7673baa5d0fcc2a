"""Long documents for a model with short positions."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

MODEL = "models/tiny-chat"
args = SFTConfig(
    output_dir="long-docs",
    max_length=8192,
    learning_rate=2e-5,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    max_steps=300,
    logging_steps=10,
    save_steps=100,
)
print(MODEL, args)
data = load_dataset("json", data_files="data/chats.jsonl", split="train")
trainer = SFTTrainer(model=MODEL, args=args, train_dataset=data)
trainer.train()
trainer.save_model()
