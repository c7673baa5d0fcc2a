"""LoRA whose weights will hardly move."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

adapter = LoraConfig(r=32, lora_alpha=64, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
args = SFTConfig(
    output_dir="lora-slow",
    learning_rate=1e-8,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    max_steps=1000,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(adapter, args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-1.5B",
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=adapter,
)
trainer.train()
trainer.save_model()
