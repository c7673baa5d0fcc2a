"""A classifier whose arguments all come from the command line."""

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
print(args)
name = "distilbert/distilbert-base-uncased"
tokenizer = AutoTokenizer.from_pretrained(name)
news = load_dataset("fancyzhx/ag_news", split="train")
news = news.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128), batched=True)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(name, num_labels=4),
    args=args,
    train_dataset=news,
    processing_class=tokenizer,
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
trainer.save_model()
