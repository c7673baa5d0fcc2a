# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
#     "peft>=0.18",
# ]
# ///
"""SFT with packing on an A100."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

name = "Qwen/Qwen2.5-1.5B"
print("loading", name)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="flash_attention_2")
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="qwen-packed",
        packing=True,
        max_length=2048,
        bf16=True,
        per_device_train_batch_size=4,
        learning_rate=1e-4,
        max_steps=1000,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"),
)
trainer.train()
trainer.save_model()
