"""A first try on a free T4."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

arguments = {
    "output_dir": "first-try",
    "bf16": True,
    "learning_rate": 2e-5,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_length": 512,
    "max_steps": 200,
    "logging_steps": 10,
    "save_steps": 100,
}
print(arguments)
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-135M",
    args=SFTConfig(**arguments),
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
)
trainer.train()
trainer.save_model()
