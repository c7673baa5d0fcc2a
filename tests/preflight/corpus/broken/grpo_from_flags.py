"""GRPO with everything on the command line."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser


def short(completions, **kwargs):
    """The shorter, the better."""
    return [-len(text) / 1000 for text in completions]


def main():
    (args,) = TrlParser((GRPOConfig,)).parse_args_and_config()
    print(args)
    data = load_dataset("trl-lib/tldr", split="train")
    trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=short, args=args, train_dataset=data)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
