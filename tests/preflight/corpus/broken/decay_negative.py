"""A reward model with a slip in the weight decay."""

from datasets import load_dataset
from trl import RewardConfig, RewardTrainer

options = dict(weight_decay=-0.01, learning_rate=1e-5, adam_beta2=0.98)
args = RewardConfig(
    output_dir="reward",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    max_length=1024,
    logging_steps=20,
    save_steps=500,
    save_total_limit=2,
    **options,
)
print(args)
trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.save_model()
