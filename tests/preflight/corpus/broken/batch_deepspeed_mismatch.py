"""Two cards, ZeRO-2; the batch size stands in two places."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

config = SFTConfig(
    output_dir="out/zero2",
    deepspeed="configs/zero2_fixed.json",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    learning_rate=1e-5,
    max_length=1024,
    max_steps=2000,
    bf16=True,
    logging_steps=10,
    save_steps=500,
    save_total_limit=2,
)
print(config)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B", args=config, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train()
trainer.save_model()
