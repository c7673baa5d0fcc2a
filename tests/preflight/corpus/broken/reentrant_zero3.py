"""LoRA under ZeRO-3 with the plain Trainer on eight cards; checkpointing of the kind that is the default elsewhere."""

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

NAME = "Qwen/Qwen2.5-7B"


def main():
    args = TrainingArguments(
        output_dir="zero3-lora",
        deepspeed="configs/zero3.json",
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=True,
        learning_rate=1e-4,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        max_steps=1000,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
    )
    print(args)
    tokenizer = AutoTokenizer.from_pretrained(NAME)
    model = AutoModelForCausalLM.from_pretrained(NAME, dtype="bfloat16")
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    texts = load_dataset("Salesforce/wikitext", "wikitext-103-raw-v1", split="train").filter(lambda row: len(row["text"]) > 50)
    tokens = texts.map(
        lambda rows: tokenizer(rows["text"], truncation=True, max_length=1024), batched=True, remove_columns=["text"]
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model=model, args=args, train_dataset=tokens, data_collator=collator).train()


if __name__ == "__main__":
    main()
