"""A run without any network: model and data lie beside the script."""

from dataclasses import dataclass, field

from datasets import load_dataset
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer


@dataclass
class Inputs:
    """Where things lie."""

    model: str = field(default="models/tiny-chat", metadata={"help": "a folder with a model"})
    data: str = field(default="data/chats.jsonl", metadata={"help": "conversations, a line each"})


def main() -> None:
    (inputs,) = HfArgumentParser(Inputs).parse_args_into_dataclasses()
    print(inputs)
    trainer = SFTTrainer(
        model=inputs.model,
        args=SFTConfig(
            output_dir="out/tiny",
            learning_rate=5e-5,
            per_device_train_batch_size=2,
            max_length=512,
            num_train_epochs=10,
            bf16=False,
            logging_steps=1,
            save_strategy="epoch",
            save_total_limit=2,
        ),
        train_dataset=load_dataset("json", data_files=inputs.data, split="train"),
    )
    trainer.train()
    trainer.save_model("out/tiny/final")


if __name__ == "__main__":
    main()
