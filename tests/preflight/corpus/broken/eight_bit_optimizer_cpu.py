# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers[torch]>=5.0", "datasets>=4.7", "bitsandbytes>=0.45"]
# ///
"""Test the pipeline on a machine without a GPU."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

NAME = "google-bert/bert-base-uncased"
args = TrainingArguments(
    output_dir="cpu-test",
    use_cpu=True,
    optim="adamw_bnb_8bit",
    learning_rate=3e-5,
    per_device_train_batch_size=4,
    max_steps=20,
    logging_steps=5,
    save_strategy="no",
)
print(args)
tokenizer = AutoTokenizer.from_pretrained(NAME)
rows = load_dataset("stanfordnlp/imdb", split="train[:200]")
rows = rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=64), batched=True)
Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=2),
    args=args,
    train_dataset=rows,
    processing_class=tokenizer,
).train()
