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
"""SFT on a T4 with values that are known to work there."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

MODEL = "HuggingFaceTB/SmolLM2-135M"
DATA = "trl-lib/Capybara"

config = SFTConfig(
    output_dir="smol-capybara",
    # torch_compile=True,  # on an H100 it saves a fifth of the time
    optim="adamw_torch",
    fp16=True,
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    warmup_steps=20,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=400,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(f"model {MODEL}, data {DATA}")
print(config)
trainer = SFTTrainer(model=MODEL, args=config, train_dataset=load_dataset(DATA, split="train"))
trainer.train()
trainer.save_model("smol-capybara/final")
