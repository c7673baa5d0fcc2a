"""Find the largest batches of a data loader quickly: the ones that need most memory."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

MOST_RECORDS = 2_000
MOST_BATCHES = 32
MOST_SECONDS = 3.0
MOST_UNREADABLE = 3
PLAIN_SAMPLERS = ("RandomSampler", "SequentialSampler", "SeedableRandomSampler", "LengthGroupedSampler",
                  "DistributedSampler")  # fmt: skip
"""Samplers under which any records may meet in a batch; others (a group per prompt) are only listened to."""

Attempt = Callable[[str, Callable[[], None]], bool]
"""Does something, notes its failure under a place, and says whether it went well."""


@dataclass(slots=True)
class Batch:
    """One batch and what it is made of."""

    inputs: Any
    size: int
    records: tuple[int, ...] = ()
    """Places of its records in the dataset, where they are known."""


@dataclass(slots=True)
class Found:
    """The largest batches found, and how many records or batches were looked at for it."""

    batches: list[Batch] = field(default_factory=list)
    looked_at: str = ""


def largest_batches(loader: Any, batch_size: int, count: int, what: str, attempt: Attempt) -> Found:
    """Return `count` batches, the largest first; what cannot be read is noted by `attempt` and left out."""
    if _is_plain(loader):
        return _of_records(loader, batch_size, count, what, attempt)
    found = Found()
    attempt(f"reading the {what} data", lambda: _listen(loader, count, found))
    return found


def size_of(thing: Any) -> int:
    """Return tensor elements, tokens or characters; whatever makes a record large."""
    if isinstance(thing, str | bytes):
        return len(thing)
    if isinstance(thing, Mapping):
        return sum(size_of(value) for value in thing.values())
    elements = getattr(thing, "numel", None)
    if callable(elements):
        return int(elements())
    size = getattr(thing, "size", None)
    if isinstance(size, int):
        return size
    if isinstance(thing, list | tuple):
        nested = bool(thing) and not isinstance(thing[0], int | float)
        return sum(size_of(inner) for inner in thing) if nested else len(thing)
    if isinstance(size, tuple):  # an image says width and height
        return int(size[0]) * int(size[-1])
    return 1


def _is_plain(loader: Any) -> bool:
    """Say whether records can be fetched one by one and put together freely."""
    dataset = getattr(loader, "dataset", None)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return False
    sampler = getattr(loader, "batch_sampler", None)
    for _ in range(4):
        if sampler is None or type(sampler).__name__ in PLAIN_SAMPLERS:
            break
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return type(sampler).__name__ in PLAIN_SAMPLERS


def _of_records(loader: Any, batch_size: int, count: int, what: str, attempt: Attempt) -> Found:
    sizes = _scan(loader.dataset, what, attempt)
    found = Found(looked_at=f"{len(sizes):,} of {len(loader.dataset):,} records")
    order = sorted(sizes, key=lambda place: (-sizes[place], place))
    for start in range(0, batch_size * count, batch_size):
        places = tuple(islice(cycle(order), start, start + batch_size)) if order else ()
        batch = Batch(None, sum(sizes[place] for place in places), places)
        if not places or not attempt(f"collating {what} {named(places)}", lambda b=batch: _collate(loader, b)):  # type: ignore[misc]
            break
        found.batches.append(batch)
    return found


def _collate(loader: Any, batch: Batch) -> None:
    records = [loader.dataset[place] for place in batch.records]
    # Copies: some collators take entries out of the records they are given.
    batch.inputs = loader.collate_fn([copy.copy(record) for record in records])


def _scan(dataset: Any, what: str, attempt: Attempt) -> dict[int, int]:
    """Return the sizes of as many records as can be looked at quickly, in an order that favours none."""
    places = list(range(len(dataset))) if len(dataset) <= MOST_RECORDS else _sample(len(dataset))
    sizes: dict[int, int] = {}
    unreadable = 0
    until = time.perf_counter() + MOST_SECONDS

    def look(place: int) -> None:
        sizes[place] = size_of(dataset[place])

    for place in places:
        if not attempt(f"reading {what} record {place}", lambda p=place: look(p)):  # type: ignore[misc]
            unreadable += 1
        if unreadable >= MOST_UNREADABLE or time.perf_counter() > until:
            break
    return sizes


def _sample(length: int) -> list[int]:
    return random.Random(0).sample(range(length), MOST_RECORDS)  # noqa: S311  # a sample, not a secret


def _listen(loader: Any, count: int, found: Found) -> None:
    """Take the largest of the first batches the loader gives."""
    until = time.perf_counter() + MOST_SECONDS
    looked_at = 0
    for inputs in _first(loader, max(MOST_BATCHES, count)):
        looked_at += 1
        found.batches.append(Batch(inputs, size_of(inputs) if not isinstance(inputs, list) else _sum(inputs)))
        found.batches.sort(key=lambda batch: -batch.size)
        del found.batches[count:]
        if time.perf_counter() > until and looked_at >= count:
            break
    found.looked_at = f"the first {looked_at} batches"
    found.batches = [
        Batch(copy.copy(batch.inputs), batch.size) for batch in islice(cycle(found.batches), count)
    ]  # fmt: skip


def _sum(records: list[Any]) -> int:
    return sum(size_of(record) for record in records)


def _first(loader: Any, count: int) -> Iterator[Any]:
    iterator = iter(loader)
    try:
        yield from islice(iterator, count)
    finally:
        close = getattr(iterator, "close", None)
        if callable(close):
            close()


def named(places: tuple[int, ...]) -> str:
    """Return the places of records in words."""
    shown = ", ".join(str(place) for place in places[:8])
    return f"records {shown}{', ...' if len(places) > 8 else ''}"
