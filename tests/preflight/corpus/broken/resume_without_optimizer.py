"""A run on preemptible machines: it always goes on where it was."""

from pathlib import Path

from datasets import load_dataset
from trl import RewardConfig, RewardTrainer

OUT = Path("out/reward-spot")
args = RewardConfig(
    output_dir=str(OUT),
    save_only_model=True,
    save_steps=100,
    save_total_limit=3,
    learning_rate=1e-5,
    per_device_train_batch_size=8,
    max_length=768,
    num_train_epochs=1,
    logging_steps=10,
)
print(args)
trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train(resume_from_checkpoint=any(OUT.glob("checkpoint-*")))
trainer.save_model()
