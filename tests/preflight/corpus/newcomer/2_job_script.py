# /// script
# dependencies = [
#     "transformers",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""A job: check with heal check 2_job.json 2_job_script.py --hours 3"""

import os

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

model = os.environ["MODEL_ID"]
dataset = os.environ["DATASET_ID"]
print(model, dataset)
args = SFTConfig(
    output_dir="job",
    push_to_hub=True,
    hub_model_id="acme-research/job",
    model_init_kwargs={"attn_implementation": "flash_attention_2"},
    learning_rate=2e-4,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    max_length=1024,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
)
trainer = SFTTrainer(
    model=model,
    args=args,
    train_dataset=load_dataset(dataset, split="train"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
)
trainer.train()
trainer.push_to_hub()
