"""Classify toxic comments on an A100."""

from dataclasses import asdict, dataclass

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


@dataclass
class Settings:
    output_dir: str = "toxic"
    learning_rate: float = 2e-5
    per_device_train_batch_size: int = 32
    num_train_epochs: float = 2.0
    fp16: bool = True
    bf16: bool = True
    logging_steps: int = 50
    save_strategy: str = "epoch"


settings = Settings()
print(settings)
name = "FacebookAI/roberta-base"
tokenizer = AutoTokenizer.from_pretrained(name)
comments = load_dataset("stanfordnlp/imdb", split="train")
comments = comments.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=256), batched=True)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(name, num_labels=2),
    args=TrainingArguments(**asdict(settings)),
    train_dataset=comments,
    processing_class=tokenizer,
)
trainer.train()
