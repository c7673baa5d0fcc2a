"""LoRA on a 70B model, weights in bf16, one card."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

MODEL = "meta-llama/Llama-3.1-70B"

config = SFTConfig(
    output_dir="llama-70b-lora",
    model_init_kwargs={"dtype": "bfloat16"},
    bf16=True,
    gradient_checkpointing=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    max_length=2048,
    learning_rate=1e-4,
    max_steps=500,
    logging_steps=5,
    save_steps=100,
    save_total_limit=2,
)
print(MODEL, config)
trainer = SFTTrainer(
    model=MODEL,
    args=config,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.save_model()
