"""Give a base model a chat format of our own."""

from dataclasses import dataclass

from datasets import load_dataset
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer


@dataclass
class Choice:
    """What to train, from where."""

    model: str = "Qwen/Qwen2.5-0.5B"
    data: str = "trl-lib/Capybara"


def main():
    (choice,) = HfArgumentParser(Choice).parse_args_into_dataclasses()
    print(choice)
    config = SFTConfig(
        output_dir="out/own-format",
        chat_template_path="templates/house_style.jinja",
        learning_rate=1e-5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_length=1024,
        logging_steps=10,
        save_steps=200,
        save_total_limit=2,
    )
    trainer = SFTTrainer(model=choice.model, args=config, train_dataset=load_dataset(choice.data, split="train"))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
