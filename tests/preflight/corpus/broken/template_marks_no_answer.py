"""Only answers are to be learnt, but the template does not say where they are."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="answers-only",
    assistant_only_loss=True,
    learning_rate=5e-5,
    per_device_train_batch_size=2,
    max_length=512,
    num_train_epochs=3,
    logging_steps=1,
    save_strategy="epoch",
)
print(args)
data = load_dataset("json", data_files="data/chats.jsonl", split="train")
trainer = SFTTrainer(model="models/tiny-chat", args=args, train_dataset=data)
trainer.train()
trainer.save_model()
