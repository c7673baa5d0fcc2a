"""SFT that ends turns with a token the tokenizer does not have."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="tiny-eos",
    eos_token="<|im_end|>",
    learning_rate=5e-5,
    per_device_train_batch_size=2,
    max_length=256,
    num_train_epochs=5,
    logging_steps=1,
    save_strategy="epoch",
    save_total_limit=1,
)
print(args)
trainer = SFTTrainer(
    model="models/tiny-chat",
    args=args,
    train_dataset=load_dataset("json", data_files="data/chats.jsonl", split="train"),
)
trainer.train()
trainer.save_model()
