"""KTO in little memory."""

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer

args = KTOConfig(
    output_dir="kto-small",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    learning_rate=1e-6,
    max_length=1024,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=300,
    save_total_limit=2,
)
print(args)
trainer = KTOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", args=args, train_dataset=load_dataset("trl-lib/kto-mix-14k", split="train")
)
trainer.train()
trainer.save_model()
