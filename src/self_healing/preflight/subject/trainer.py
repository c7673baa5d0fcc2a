"""A trainer that is built, as what is to be run: its settings are the values that it has, whatever they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any

from ..finding import Place
from ..options import CheckOptions
from .references import setting_references
from .subject import Subject
from .values import Setting

_ALWAYS = frozenset(
    "learning_rate per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs "
    "max_steps warmup_steps warmup_ratio weight_decay max_grad_norm lr_scheduler_type optim bf16 fp16 tf32 "
    "gradient_checkpointing gradient_checkpointing_kwargs eval_strategy eval_steps save_strategy save_steps save_total_limit "
    "logging_steps logging_strategy logging_nan_inf_filter load_best_model_at_end metric_for_best_model output_dir "
    "push_to_hub hub_model_id report_to max_length packing num_generations max_completion_length beta".split()
)
"""What checks ask for, also where it has its default."""
_SECRETS = frozenset({"hub_token", "push_to_hub_token"})
_NOT_CHOSEN = frozenset({"logging_dir", "run_name", "local_rank", "ddp_backend"})
"""Set by the arguments themselves."""


def subject_of_trainer(trainer: Any, options: CheckOptions) -> Subject:
    """Return what a trainer is about to do."""
    settings = tuple(_settings(trainer))
    references = [each for each in setting_references(settings) if each.place.key == "hub_model_id"]
    return Subject(settings=settings, references=tuple(references), options=options, trainer=trainer)


def _settings(trainer: Any) -> Iterator[Setting]:
    arguments = trainer.args
    owner = type(arguments).__name__
    for each in dataclasses.fields(arguments):
        name = each.name
        if name.startswith("_") or name in _SECRETS or name in _NOT_CHOSEN or not hasattr(arguments, name):
            continue
        value = _plain(getattr(arguments, name))
        if value is None or value == "" or not _is_plain(value):
            continue
        if name in _ALWAYS or value != _plain(_default(each)):
            yield Setting(
                name=name, key=name, value=value, text=repr(value)[:200], place=Place("trainer", key=name), owner=owner
            )


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, str | int | float)
