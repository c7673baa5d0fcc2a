"""Full fine-tuning of a 7B model on an A10G."""

import argparse

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mistralai/Mistral-7B-v0.3")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=1000)
    return parser.parse_args()


def main():
    options = parse()
    print(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.unk_token
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="bfloat16")
    data = load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split="train")
    data = data.filter(lambda row: len(row["text"]) > 50)
    data = data.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=1024), batched=True, remove_columns=["text"])
    args = TrainingArguments(
        output_dir="mistral-full",
        bf16=True,
        per_device_train_batch_size=4,
        learning_rate=options.lr,
        max_steps=options.steps,
        warmup_steps=50,
        logging_steps=10,
        save_steps=500,
        save_total_limit=1,
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model=model, args=args, train_dataset=data, data_collator=collator).train()


if __name__ == "__main__":
    main()
