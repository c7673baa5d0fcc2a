"""Teach a small model the tone of our support team."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

DATA = "data/suport_tickets.jsonl"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

print(f"model {MODEL}, data {DATA}")
tickets = load_dataset("json", data_files=DATA, split="train")

trainer = SFTTrainer(
    model=MODEL,
    args=SFTConfig(
        output_dir="out/support-tone",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        learning_rate=2e-5,
        num_train_epochs=2,
        max_length=512,
        logging_steps=5,
        save_strategy="epoch",
    ),
    train_dataset=tickets,
)
trainer.train()
trainer.save_model()
