"""Sort news; stop when it gets no better."""

import argparse

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)


def accuracy(prediction):
    """Return the share of right guesses."""
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="distilbert/distilbert-base-uncased")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--out", default="out/news")
    flags = parser.parse_args()
    print(flags)

    tokenizer = AutoTokenizer.from_pretrained(flags.model)
    news = load_dataset("fancyzhx/ag_news")
    news = news.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128), batched=True)
    args = TrainingArguments(
        output_dir=flags.out,
        learning_rate=flags.lr,
        weight_decay=0.01,
        warmup_steps=0.06,
        per_device_train_batch_size=flags.batch,
        per_device_eval_batch_size=2 * flags.batch,
        num_train_epochs=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        logging_steps=50,
        fp16=True,
    )
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(flags.model, num_labels=4),
        args=args,
        train_dataset=news["train"],
        eval_dataset=news["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )
    trainer.train()
    trainer.save_model(f"{flags.out}/best")


if __name__ == "__main__":
    main()
