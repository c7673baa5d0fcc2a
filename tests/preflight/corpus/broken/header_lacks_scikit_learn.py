# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers[torch]>=5.0",
#     "datasets>=4.7",
#     "numpy>=1.26",
# ]
# ///
"""Sort reviews into good and bad."""

import numpy as np
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def scores(prediction):
    """Return accuracy and F1."""
    guesses = np.argmax(prediction.predictions, axis=-1)
    return {
        "accuracy": accuracy_score(prediction.label_ids, guesses),
        "f1": f1_score(prediction.label_ids, guesses),
    }


reviews = load_dataset("stanfordnlp/imdb")
tokenizer = AutoTokenizer.from_pretrained("distilbert/distilbert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("distilbert/distilbert-base-uncased", num_labels=2)
encoded = reviews.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=256), batched=True)
args = TrainingArguments(
    output_dir="out/imdb",
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="f1",
    learning_rate=3e-5,
    per_device_train_batch_size=16,
    num_train_epochs=2,
    logging_steps=50,
)
print(args)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=encoded["train"],
    eval_dataset=encoded["test"],
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=scores,
)
trainer.train()
print(trainer.evaluate())
