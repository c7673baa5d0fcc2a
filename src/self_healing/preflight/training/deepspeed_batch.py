"""The batch sizes of a DeepSpeed config, and the training that is given it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ..finding import Place
from ..subject import Config, Subject
from ..subject.files import json_object
from .arguments import Training, reader_of, trainings

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True)
class Batches:
    """What a DeepSpeed config says of batches."""

    content: Mapping[str, Any]
    place: Place
    config: Config | None = None
    training: Training | None = None
    """The one that is given it, whose arguments have to agree."""

    def size(self, name: str) -> int | None:
        """Return a size that is written out; `auto` is filled in by transformers."""
        value = self.content.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def where(self, *path: str) -> Place:
        """Return where a value stands."""
        line = self.config.line_of(*path) if self.config is not None else 0
        return Place(self.config.named, line, ".".join(path)) if self.config is not None and line else self.place


def deepspeed_batches(subject: Subject, cwd: Path) -> Iterator[Batches]:
    """Yield every DeepSpeed config, with its training where one names it; the values of one that is not here are not known."""
    files = [config for config in subject.configs if reader_of(config) == "deepspeed"]
    named: set[str] = set()
    found = trainings(subject)
    for training in found:
        value, place = training.value("deepspeed"), training.where("deepspeed")
        if isinstance(value, Mapping):
            yield Batches(value, place, training=training)
        elif isinstance(value, str) and value:
            config = next((each for each in files if PurePath(each.named) == PurePath(value)), None)
            content = config.content if config is not None else json_object(cwd / value)
            if content is not None:
                named.add(config.named if config is not None else value)
                yield Batches(content, place, config, training)
    for config in files:
        if config.named not in named:
            yield Batches(config.content, Place(config.named, 1), config)
