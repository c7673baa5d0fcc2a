"""SFT with everything on the command line."""

from dataclasses import dataclass

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer, TrlParser


@dataclass
class Inputs:
    """What is trained on what."""

    model: str = "Qwen/Qwen2.5-0.5B"
    dataset: str = "trl-lib/Capybara"


def main() -> None:
    inputs, args = TrlParser((Inputs, SFTConfig)).parse_args_and_config()
    print(inputs, args)
    trainer = SFTTrainer(model=inputs.model, args=args, train_dataset=load_dataset(inputs.dataset, split="train"))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
