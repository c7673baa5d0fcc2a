# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
#     "flash-attn>=2.7",
# ]
# ///
"""SFT on a T4, as quick as it gets."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

FAST = {"attn_implementation": "flash_attention_2"}

args = SFTConfig(
    output_dir="smol-fast",
    model_init_kwargs=FAST,
    fp16=True,
    learning_rate=2e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=400,
    logging_steps=10,
    save_steps=200,
)
print(args)
SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
).train()
