"""What the place of a run in its data depends on: where one of these changes, nobody can say how far it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from ...core.signal import Fact
from ..family import names_in_all

WORDS = {
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "processes": "the number of processes",
    "records": "the number of training records",
    "data": "the content of the training data (by a checksum of three records)",
    "trainer": "the class of the trainer",
    "optimizer": "the optimizer",
    "lr_scheduler": "the scheduler",
    "frozen": "the checksum of the frozen weights",
    "reference": "the checksum of the reference model",
}

KEPT, REORDERED = "the optimizer goes on with what it had", "data may come in another order from here on"
RECIPE = {"learning_rate": KEPT, "weight_decay": KEPT, "seed": REORDERED, "data_seed": REORDERED}
"""Arguments that may be others where a run is gone on with, and what becomes of them: nobody should have to guess."""
_ASKED = "asked_"
"""Before the names of such facts: the rules know others that are called as the arguments are."""


def fact_names() -> frozenset[str]:
    """Return what any of these facts is called."""
    asked = (_ASKED + name for name in RECIPE)
    places = ("batch_size", "accumulation", "processes", "records", "data")
    return frozenset({*places, *asked, *names_in_all("data_settings")})


def recipe_facts(trainer: Any) -> dict[str, Fact]:
    """Return the arguments of a training that a state brings along, as the user has given them."""
    given = ((name, getattr(trainer.args, name, None)) for name in RECIPE)
    return {_ASKED + name: value for name, value in given if value is not None}


def recipe_differences(before: Mapping[str, object], trainer: Any) -> list[str]:
    """Say which of these are others than they were, and what becomes of it."""
    return [
        f"{(name := fact.removeprefix(_ASKED))} is {value} and was {before[fact]}: {RECIPE[name]}"
        for fact, value in sorted(recipe_facts(trainer).items())
        if fact in before and before[fact] != value
    ]


def data_facts(trainer: Any) -> dict[str, Fact]:
    """Return what is known of the data of a training; nothing is read of what may change by being read."""
    args, dataset = trainer.args, getattr(trainer, "train_dataset", None)
    facts: dict[str, Fact] = {
        "batch_size": int(args.per_device_train_batch_size),
        "accumulation": int(args.gradient_accumulation_steps),
        "processes": int(args.world_size),
    }
    facts.update((name, int(getattr(args, name))) for name in names_in_all("data_settings") if hasattr(args, name))
    try:
        facts["records"] = len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a stream
        return facts
    content = _checksum(dataset, int(facts["records"]))
    return facts if content is None else {**facts, "data": content}


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Say which of these facts are others than they were; one that was not known then is no difference."""
    return [
        f"{WORDS.get(name, name)} is {now[name]} and was {before[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    ]


def _checksum(dataset: Any, records: int) -> str | None:
    """Return a checksum of a few records that are only there to be read; None for all others: they may be drawn."""
    if hasattr(dataset, "with_format") and hasattr(
        dataset, "_data"
    ):  # of `datasets`, without what its owner does to it
        dataset = dataset.with_format(None)
    elif type(dataset) not in (list, tuple):  # what is made of one may do anything when it is read
        return None
    if not records:
        return None
    places = sorted({0, records // 2, records - 1})
    try:
        content = json.dumps([dataset[place] for place in places], sort_keys=True)
    except (TypeError, ValueError):  # tensors, images: they have no short text
        return None
    return xxhash.xxh3_64_hexdigest(content.encode())
