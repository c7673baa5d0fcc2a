"""Pretraining on a stream: its length is not known, so the steps are given."""

from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

BLOCK = 1024
tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M")
if tokenizer.pad_token is None:
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
config = AutoConfig.from_pretrained("HuggingFaceTB/SmolLM2-135M", vocab_size=len(tokenizer))
model = AutoModelForCausalLM.from_config(config)
stream = load_dataset("HuggingFaceFW/fineweb-edu", "sample-10BT", split="train", streaming=True)
tokens = stream.map(
    lambda rows: tokenizer(rows["text"], truncation=True, max_length=BLOCK),
    batched=True,
    remove_columns=stream.column_names,
)
args = TrainingArguments(
    output_dir="scratch-135m",
    max_steps=50_000,
    learning_rate=6e-4,
    adam_beta2=0.95,
    weight_decay=0.1,
    warmup_steps=1000,
    lr_scheduler_type="cosine",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    bf16=True,
    logging_steps=20,
    save_steps=1000,
    save_total_limit=3,
    report_to="tensorboard",
)
print(args)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=tokens,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
