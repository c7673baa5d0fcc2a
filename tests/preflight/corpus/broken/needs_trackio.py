# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""KTO with figures on a dashboard."""

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

common = {"learning_rate": 1e-6, "num_train_epochs": 1, "logging_steps": 10, "max_length": 1024}
batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
saving = {"save_steps": 250, "save_total_limit": 2}

args = KTOConfig(output_dir="kto-mix", report_to="trackio", run_name="kto-1", **common, **batches, **saving)
print(args)
trainer = KTOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/kto-mix-14k", split="train"),
)
trainer.train()
trainer.save_model()
