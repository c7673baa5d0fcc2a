"""ZeRO-3 over eight cards; its checkpointing is of the reentrant kind."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="qwen7b-zero3",
    deepspeed="configs/zero3.json",
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": True},
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    max_length=2048,
    num_train_epochs=1,
    logging_steps=5,
    save_steps=200,
    save_total_limit=1,
)
print(args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-7B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train()
trainer.save_model()
