"""What is known of what is to be run: values with their places, and the things that are named."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..finding import Place


class _Unknown:
    """The value of what only the running program knows."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class Value:
    """A value as far as it can be known without running anything."""

    value: object
    """A literal, a list or dict of them, or UNKNOWN."""
    text: str
    """As it is written."""
    line: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it can be known."""
        return self.value is not UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the training, wherever it stands: `SFTConfig(learning_rate=...)`, a key of a config, a flag."""

    name: str
    """The last part of its key, as transformers spells it where a synonym is known: `per_device_train_batch_size`."""
    key: str
    """As it is written: `training.lr`, `--learning_rate`, `learning_rate`."""
    value: object
    """A literal, or UNKNOWN."""
    text: str
    """As it is written."""
    place: Place
    owner: str = ""
    """The class it is given to (`SFTConfig`), or the framework of its config (`axolotl`)."""


class Kind(StrEnum):
    """What a name stands for."""

    MODEL = "model"
    TOKENIZER = "tokenizer"
    ADAPTER = "adapter"
    DATASET = "dataset"
    OUTPUT_REPO = "output repository"
    FILE = "file"
    MODULE = "module"
    """Python code named by its import path: reward modules."""
    URL = "url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something that is named and has to be there."""

    kind: Kind
    name: str
    place: Place
    revision: str | None = None
    config: str | None = None
    """The configuration of a data set."""
    split: str | None = None
    columns: tuple[str, ...] = ()
    """The columns of a data set that are asked for by name."""
    is_aside: bool = False
    """Of a model: it is read beside the one that is trained, as its reference, reward or teacher."""
