"""DPO after SFT; the learning rate was taken over from the adapter run."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

LR = 1e-3

args = DPOConfig(
    output_dir="dpo-high",
    learning_rate=LR,
    beta=0.1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
trainer.save_model()
