"""A token classifier with five per cent warm-up."""

import logging

from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments
from datasets import load_dataset

logging.basicConfig(level=logging.INFO)
BASE = "google-bert/bert-base-uncased"
tokenizer = AutoTokenizer.from_pretrained(BASE)
texts = load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split="train").filter(lambda row: len(row["text"]) > 20)
tokens = texts.map(lambda r: tokenizer(r["text"], truncation=True, max_length=256), batched=True, remove_columns=["text"])
args = TrainingArguments(
    output_dir="mlm",
    warmup_ratio=0.05,
    learning_rate=5e-5,
    per_device_train_batch_size=32,
    num_train_epochs=2,
    logging_steps=20,
    save_strategy="epoch",
)
logging.info("arguments %s", args)
Trainer(
    model=AutoModelForMaskedLM.from_pretrained(BASE),
    args=args,
    train_dataset=tokens,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
).train()
