"""The prompts alone are longer than what is kept."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="cut",
    completion_only_loss=True,
    max_length=32,
    learning_rate=2e-5,
    per_device_train_batch_size=2,
    num_train_epochs=2,
    logging_steps=1,
    save_strategy="epoch",
)
print(args)
trainer = SFTTrainer(
    model="models/tiny-chat",
    args=args,
    train_dataset=load_dataset("json", data_files="data/long_prompts.jsonl", split="train"),
)
trainer.train()
trainer.save_model()
