"""Asks the GPU what it can do; the fast things are off unless asked for."""

import argparse

import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--fast", action="store_true", help="compile and flash attention: needs an A100 or newer")
parser.add_argument("--steps", type=int, default=400)
flags = parser.parse_args()
print(flags)

has_bf16 = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8
extra = {}
if flags.fast:
    extra["torch_compile"] = True
    extra["model_init_kwargs"] = {"attn_implementation": "flash_attention_2"}

args = SFTConfig(
    output_dir="careful",
    bf16=has_bf16,
    fp16=not has_bf16,
    learning_rate=2e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=512,
    max_steps=flags.steps,
    eval_strategy="steps",
    eval_steps=0.1,
    save_steps=0.2,
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    logging_steps=0.01,
    **extra,
)
print(args)
data = load_dataset("trl-lib/Capybara")
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M", args=args, train_dataset=data["train"], eval_dataset=data["test"]
)
trainer.train()
trainer.save_model()
