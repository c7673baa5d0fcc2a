# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0", "trl>=1.0", "datasets>=4.7", "wandb>=0.19"]
# ///
"""A small DPO job that reports to Weights & Biases."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

args = DPOConfig(
    output_dir="dpo-job",
    report_to="wandb",
    run_name="dpo-job-1",
    bf16=True,
    learning_rate=1e-6,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=768,
    max_steps=500,
    logging_steps=5,
    save_steps=250,
    push_to_hub=True,
    hub_model_id="acme-research/dpo-job",
)
print(args)
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.push_to_hub()
