"""Causal LM with the plain Trainer; batches are padded."""

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

FOLDER = "models/tiny-base"

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)
texts = load_dataset("json", data_files="data/support_tickets.jsonl", split="train")
tokens = texts.map(
    lambda rows: tokenizer(rows["text"], truncation=True, padding="max_length", max_length=64),
    batched=True,
    remove_columns=["text"],
)
args = TrainingArguments(
    output_dir="tiny-out",
    learning_rate=5e-5,
    per_device_train_batch_size=2,
    num_train_epochs=20,
    logging_steps=2,
    save_strategy="epoch",
    save_total_limit=2,
)
print(args)
Trainer(
    model=model, args=args, train_dataset=tokens, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)
).train()
