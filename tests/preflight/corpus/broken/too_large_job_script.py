# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7", "peft>=0.18"]
# ///
"""LoRA of a 13B model in half precision."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

name = "huggyllama/llama-13b"
print("loading", name)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="llama13b-lora",
        fp16=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        max_length=512,
        learning_rate=1e-4,
        max_steps=300,
        logging_steps=10,
        save_steps=100,
        push_to_hub=True,
        hub_model_id="acme-research/llama13b-lora",
    ),
    train_dataset=load_dataset("tatsu-lab/alpaca", split="train"),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
trainer.push_to_hub()
