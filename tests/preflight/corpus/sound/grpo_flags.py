"""GRPO with everything on the command line."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser


class Brevity:
    """A reward that is an object."""

    __name__ = "brevity"

    def __call__(self, prompts, completions, **kwargs):
        return [-len(text) / 1000 for text in completions]


if __name__ == "__main__":
    (config,) = TrlParser((GRPOConfig,)).parse_args_and_config()
    print(config)
    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=Brevity(),
        args=config,
        train_dataset=load_dataset("trl-lib/tldr", split="train"),
    )
    trainer.train()
    trainer.save_model()
