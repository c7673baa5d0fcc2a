"""Flex attention and checkpointing on an H100."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", dtype="bfloat16", attn_implementation="flex_attention")
args = SFTConfig(
    output_dir="flex",
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs=dict(use_reentrant=False),
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=2048,
    max_steps=1000,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
SFTTrainer(model=model, args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
