"""The settings of a training from all its sources, under the names that transformers and TRL use."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Place
from .command import Command
from .config import Config
from .script import Script
from .values import Setting

SYNONYMS = {
    "lr": "learning_rate", "base_lr": "learning_rate", "max_lr": "learning_rate",
    "micro_batch_size": "per_device_train_batch_size", "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size", "per_gpu_train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size", "grad_accum": "gradient_accumulation_steps",
    "accumulate_grad_batches": "gradient_accumulation_steps", "num_epochs": "num_train_epochs", "epochs": "num_train_epochs",
    "optimizer": "optim", "lr_scheduler": "lr_scheduler_type", "max_seq_length": "max_length",
    "max_seq_len": "max_length", "sequence_len": "max_length", "base_model": "model_name_or_path",
    "model_name": "model_name_or_path", "model_id": "model_name_or_path", "wd": "weight_decay",
    "grad_clip": "max_grad_norm", "gradient_clip_val": "max_grad_norm", "lora_rank": "lora_r", "output_folder": "output_dir",
}  # fmt: skip
"""Other spellings of the same setting; a setting keeps its own in `key`."""
_GIVEN_SETTINGS = ("Config", "Arguments")


def normal(name: str) -> str:
    """Return a setting's name as transformers spells it."""
    plain = name.replace("-", "_")
    return SYNONYMS.get(plain, plain)


def script_settings(script: Script) -> Iterator[Setting]:
    """Yield what a script gives to configurations: `SFTConfig(...)`, `TrainingArguments(...)`, `LoraConfig(...)`, trainers."""
    for call in script.calls:
        owner = call.last
        if not owner.endswith(_GIVEN_SETTINGS) and not (owner.endswith("Trainer") and owner != "Trainer.train"):
            continue
        for name, value in call.keywords.items():
            yield Setting(
                name=name,
                key=name,
                value=value.value,
                text=value.text,
                place=Place(script.named, value.line),
                owner=owner,
            )


def config_settings(config: Config, framework: str) -> Iterator[Setting]:
    """Yield what a config file holds."""
    for value in config.values:
        yield Setting(
            name=normal(value.path[-1]), key=".".join(value.path), value=value.value, text=value.text,
            place=Place(config.named, value.line, ".".join(value.path)), owner=framework,
        )  # fmt: skip


def command_settings(command: Command) -> Iterator[Setting]:
    """Yield what a command gives."""
    for flag in command.flags:
        yield Setting(
            name=normal(flag.name.rpartition(".")[2]), key=flag.key, value=flag.value, text=flag.text,
            place=Place("command", 0, flag.key), owner="command",
        )  # fmt: skip
