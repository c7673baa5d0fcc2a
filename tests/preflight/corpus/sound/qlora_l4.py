# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "peft>=0.18",
#     "datasets>=4.7",
#     "accelerate>=1.10.1",
#     "bitsandbytes>=0.45",
# ]
# ///
"""QLoRA of a 7B model on one L4."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

QUANTIZED = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_compute_dtype=torch.bfloat16,
    bnb_4bit_use_double_quant=True,
)
ADAPTER = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")


def arguments() -> SFTConfig:
    """Return what fits into 24 GB."""
    return SFTConfig(
        output_dir="qwen7b-qlora",
        bf16=True,
        gradient_checkpointing=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        max_length=1024,
        learning_rate=2e-4,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        num_train_epochs=1,
        logging_steps=5,
        save_steps=100,
        save_total_limit=2,
    )


if __name__ == "__main__":
    args = arguments()
    print(args)
    trainer = SFTTrainer(
        model="Qwen/Qwen2.5-7B",
        args=args,
        train_dataset=load_dataset("trl-lib/Capybara", split="train"),
        quantization_config=QUANTIZED,
        peft_config=ADAPTER,
    )
    trainer.train()
    trainer.save_model()
