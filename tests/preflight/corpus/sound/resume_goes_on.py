"""Go on with the run of last night."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="runs/night",
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_length=1024,
    max_steps=1000,
    logging_steps=10,
    save_steps=200,
    save_total_limit=3,
)
print("going on with", args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train(resume_from_checkpoint=True)
trainer.save_model()
