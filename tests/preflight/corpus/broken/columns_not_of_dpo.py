"""DPO on a file whose columns have names of their own."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

args = DPOConfig(
    output_dir="dpo-local",
    learning_rate=1e-6,
    per_device_train_batch_size=2,
    max_length=512,
    num_train_epochs=3,
    logging_steps=1,
    save_strategy="epoch",
    save_total_limit=1,
)
print(args)
pairs = load_dataset("json", data_files="data/pairs.jsonl", split="train")
trainer = DPOTrainer(model="HuggingFaceTB/SmolLM2-135M-Instruct", args=args, train_dataset=pairs)
trainer.train()
trainer.save_model()
