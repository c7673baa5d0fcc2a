"""Train a reward model and push it under the user's own name."""

import os

from datasets import load_dataset
from trl import RewardConfig, RewardTrainer

USER = os.environ.get("HF_USERNAME")
RUN = "reward-small"

args = RewardConfig(
    output_dir=RUN,
    hub_model_id=f"{USER}/{RUN}",
    push_to_hub=True,
    learning_rate=1e-5,
    per_device_train_batch_size=8,
    num_train_epochs=1,
    max_length=768,
    logging_steps=20,
    save_steps=400,
    save_total_limit=2,
)
print("reward model", args.hub_model_id)
trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.push_to_hub()
