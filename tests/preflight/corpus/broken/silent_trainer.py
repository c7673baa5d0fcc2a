"""Nightly retraining; it fills no logs."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

NAME = "distilbert/distilbert-base-uncased"
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=4)
news = load_dataset("fancyzhx/ag_news", split="train")
news = news.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128), batched=True)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="news",
        learning_rate=5e-5,
        per_device_train_batch_size=32,
        num_train_epochs=3,
        disable_tqdm=True,
        logging_strategy="no",
        report_to="none",
        save_strategy="epoch",
        save_total_limit=1,
    ),
    train_dataset=news,
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model("news/final")
