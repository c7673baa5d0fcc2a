"""Accumulation was meant to be switched off."""

from datasets import load_dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification, Trainer, TrainingArguments

NAME = "google-bert/bert-base-cased"
TAGS = 9

tokenizer = AutoTokenizer.from_pretrained(NAME)
sentences = load_dataset("eriktks/conll2003", split="train", revision="refs/convert/parquet")


def align(rows):
    """Give each piece of a word the word's tag; what belongs to no word is left out of the loss."""
    encoded = tokenizer(rows["tokens"], is_split_into_words=True, truncation=True, max_length=128)
    encoded["labels"] = [
        [-100 if at is None else tags[at] for at in encoded.word_ids(place)] for place, tags in enumerate(rows["ner_tags"])
    ]
    return encoded


args = TrainingArguments(
    output_dir="ner",
    learning_rate=3e-5,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=0,
    num_train_epochs=3,
    logging_steps=50,
    save_strategy="epoch",
    save_total_limit=2,
)
print(args)
trainer = Trainer(
    model=AutoModelForTokenClassification.from_pretrained(NAME, num_labels=TAGS),
    args=args,
    train_dataset=sentences.map(align, batched=True, remove_columns=sentences.column_names),
    data_collator=DataCollatorForTokenClassification(tokenizer),
)
trainer.train()
