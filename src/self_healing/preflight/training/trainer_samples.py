"""Some records of a trainer that is built, as its loss will see them; nothing of the trainer is changed by looking."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..check import CannotRun
from .samples import MOST

IGNORED = -100
"""What transformers and TRL leave out of the loss."""


@dataclass(frozen=True)
class Labelled:
    """One record as a batch of its own."""

    tokens: int
    trained: int
    """How many of them count for the loss."""


def trainer_rows(trainer: Any, most: int = MOST) -> list[Mapping[str, Any]]:
    """Return records of the training data, spread over it.

    Raises:
        CannotRun: it can only be read from its beginning, which may be all that there is.

    """
    data = getattr(trainer, "train_dataset", None)
    if data is None:
        return []
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise CannotRun("the training data is an iterable: looking at records would take them from the run")
    count = len(data)
    with kept_randomness():
        rows = [data[place * count // min(count, most)] for place in range(min(count, most))]
    return [row for row in rows if isinstance(row, Mapping)]


def labelled(trainer: Any, most: int = MOST) -> list[Labelled]:
    """Return what each record has of tokens and of tokens that count.

    Raises:
        CannotRun: the trainer's collator makes no batch of a record.

    """
    found = []
    columns = _kept_columns(trainer)
    for row in trainer_rows(trainer, most):
        kept = {name: value for name, value in row.items() if columns is None or name in columns}
        if "input_ids" not in kept:
            return []
        try:
            with kept_randomness():
                batch = trainer.data_collator([kept])
        except Exception as error:
            raise CannotRun(f"the data collator makes no batch of a record, {type(error).__name__}: {error}") from error
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if labels is None:
            return []
        flat = labels.flatten().tolist() if hasattr(labels, "flatten") else [each for row in labels for each in row]
        found.append(Labelled(len(kept["input_ids"]), sum(each != IGNORED for each in flat)))
    return found


def _kept_columns(trainer: Any) -> set[str] | None:
    """Return the columns that the trainer gives to its collator; None where it gives all."""
    if not getattr(trainer.args, "remove_unused_columns", True):
        return None
    before = getattr(trainer, "_signature_columns", None)
    setting = getattr(trainer, "_set_signature_columns_if_needed", None)
    if setting is None:
        return None
    setting()
    columns = set(trainer._signature_columns or ())  # noqa: SLF001  # there is no other way to ask
    trainer._signature_columns = before  # noqa: SLF001
    return columns | {"labels", "label", "label_ids", "completion_mask", "assistant_masks", "seq_lengths"}


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave all generators of random numbers as they were: a transform or a collator may draw from them."""
    state = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_torch = torch.get_rng_state() if torch is not None else None
    of_cuda = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)
        if torch is not None and of_torch is not None:
            torch.set_rng_state(of_torch)
            if of_cuda is not None:
                torch.cuda.set_rng_state_all(of_cuda)
