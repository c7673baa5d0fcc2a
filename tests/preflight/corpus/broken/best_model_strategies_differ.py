"""Keep the best of three epochs."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

name = "distilbert/distilbert-base-uncased"
tokenizer = AutoTokenizer.from_pretrained(name)
data = load_dataset("fancyzhx/ag_news")
data = data.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128), batched=True)
args = TrainingArguments(
    output_dir="news-best",
    eval_strategy="steps",
    eval_steps=500,
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    learning_rate=3e-5,
    per_device_train_batch_size=32,
    num_train_epochs=3,
    logging_steps=50,
)
print(args)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(name, num_labels=4),
    args=args,
    train_dataset=data["train"],
    eval_dataset=data["test"],
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model("news-best/final")
