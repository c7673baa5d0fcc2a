# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
#     "accelerate>=1.10.1",
# ]
# ///
"""LoRA on one small GPU; runs with `uv run`."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

model_id = "Qwen/Qwen2.5-0.5B"
lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
config = SFTConfig(
    output_dir="capybara-lora",
    fp16=True,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=2e-4,
    max_steps=300,
    logging_steps=10,
    save_steps=100,
)
print("training", model_id, "with", config)
trainer = SFTTrainer(
    model=model_id,
    args=config,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=lora,
)
trainer.train()
trainer.save_model("capybara-lora/final")
