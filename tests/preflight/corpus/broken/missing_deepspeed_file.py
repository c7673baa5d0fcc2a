"""Continue pretraining on eight cards with ZeRO-2."""

import logging

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("pretrain")


def main() -> None:
    args = TrainingArguments(
        output_dir="runs/pretrain",
        deepspeed="configs/ds_zero_2.json",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=5e-5,
        warmup_steps=200,
        max_steps=20_000,
        lr_scheduler_type="cosine",
        weight_decay=0.1,
        bf16=True,
        logging_steps=20,
        save_steps=1000,
        save_total_limit=3,
        report_to="tensorboard",
    )
    log.info("arguments: %s", args)
    tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", dtype="bfloat16")
    texts = load_dataset("Salesforce/wikitext", "wikitext-103-raw-v1", split="train")
    tokens = texts.map(
        lambda rows: tokenizer(rows["text"], truncation=True, max_length=1024), batched=True, remove_columns=["text"]
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=tokens,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
