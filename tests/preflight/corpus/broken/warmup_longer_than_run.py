"""Short run, long warm-up."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

STEPS = 800
args = SFTConfig(
    output_dir="short-run",
    max_steps=STEPS,
    warmup_steps=2000,
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    per_device_train_batch_size=4,
    max_length=512,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(args)
SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
).train()
