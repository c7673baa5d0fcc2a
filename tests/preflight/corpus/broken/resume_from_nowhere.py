"""Go on after the crash of last night."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

CHECKPOINT = "out/night/checkpoint-1500"

args = SFTConfig(
    output_dir="out/night",
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    max_steps=4000,
    logging_steps=10,
    save_steps=500,
    save_total_limit=3,
)
print("resuming from", CHECKPOINT, "with", args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train(resume_from_checkpoint=CHECKPOINT)
trainer.save_model()
