"""Most completions of the file are empty: nothing is left to learn from."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="sft-empty",
    completion_only_loss=True,
    learning_rate=2e-5,
    per_device_train_batch_size=2,
    max_length=256,
    num_train_epochs=2,
    logging_steps=1,
    save_strategy="epoch",
)
print(args)
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    args=args,
    train_dataset=load_dataset("json", data_files="data/half_labelled.jsonl", split="train"),
)
trainer.train()
trainer.save_model()
