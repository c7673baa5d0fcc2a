"""Sentence pairs; written for transformers 4.30."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

NAME = "FacebookAI/roberta-base"
tokenizer = AutoTokenizer.from_pretrained(NAME)
glue = load_dataset("nyu-mll/glue", "mrpc")
glue = glue.map(lambda r: tokenizer(r["sentence1"], r["sentence2"], truncation=True, max_length=128), batched=True)
common = dict(
    output_dir="mrpc",
    evaluation_strategy="epoch",
    save_strategy="epoch",
    learning_rate=2e-5,
    per_device_train_batch_size=16,
    num_train_epochs=3,
    logging_steps=20,
)
print(common)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=2),
    args=TrainingArguments(**common),
    train_dataset=glue["train"],
    eval_dataset=glue["validation"],
    processing_class=tokenizer,
)
trainer.train()
