# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "peft>=0.18",
#     "datasets>=4.7",
# ]
# ///
"""QLoRA of a 7B model on one L4."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer


def main() -> None:
    quantized = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    config = SFTConfig(
        output_dir="out/qlora",
        bf16=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        max_length=1024,
        learning_rate=2e-4,
        num_train_epochs=1,
        logging_steps=10,
        save_steps=200,
        save_total_limit=2,
    )
    print(config)
    trainer = SFTTrainer(
        model="Qwen/Qwen2.5-7B",
        args=config,
        train_dataset=load_dataset("trl-lib/Capybara", split="train"),
        quantization_config=quantized,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
