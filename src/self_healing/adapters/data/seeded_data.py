"""With `exact_data_resume = true`: what workers of a data loader draw depends on the batch and on nothing else.

Workers have random generators of their own, which no state holds and nobody can put back. A resumed trainer passes over
the batches that were trained on without reading them, so that its workers stand at another number, and even another
worker gets the next batch. So each batch gets a number, counted through its epoch, and whoever reads it begins with
generators that are seeded from the run's seed, the epoch and that number. The main process is left alone.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..wrapping import Wrapping

DEEPEST = 6
MOST_ENTRIES = 64
"""Containers with more entries hold data, and are not looked through."""


class NumberedBatch(list[Any]):
    """The places of one batch's records, on their way to a worker; a list, so that datasets take it as always."""

    def __init__(self, places: Sequence[Any] = (), name: str = "") -> None:
        super().__init__(places)
        self.name = name
        """What its random numbers are drawn from."""


class NumberedBatches:
    """A batch sampler in the place of the original in one data loader; everything else is the original's own."""

    def __init__(self, batches: Any, name: Callable[[], str]) -> None:
        self.numbered = batches
        self._name = name

    def __iter__(self) -> Iterator[NumberedBatch]:
        epoch = self._name()
        for number, places in enumerate(self.numbered):
            yield NumberedBatch(places, f"{epoch}/{number}")

    def __len__(self) -> int:
        return len(self.numbered)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "numbered":  # a copy under construction has no sampler yet
            raise AttributeError(name)
        return getattr(self.numbered, name)


class SeededRecords:
    """A map-style dataset in the place of the original in one data loader: seeds before a worker reads a batch."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self.seeded = dataset
        self._collate = collate

    def __getitems__(self, places: Sequence[Any]) -> Any:
        from torch.utils.data import get_worker_info

        if isinstance(places, NumberedBatch):
            if get_worker_info() is not None:
                seed_all(places.name, (self._collate, self.seeded))
            places = list(places)
        together = getattr(self.seeded, "__getitems__", None)
        return together(places) if together else [self.seeded[place] for place in places]

    def __getitem__(self, place: Any) -> Any:
        return self.seeded[place]

    def __len__(self) -> int:
        return len(self.seeded)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.seeded)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "seeded":
            raise AttributeError(name)
        return getattr(self.seeded, name)


class SeededData:
    """Exchanges sampler and dataset of the loaders that one trainer makes for training."""

    def __init__(self, trainer: Any, tell: Callable[[str, str], None]) -> None:
        self.trainer = trainer
        self.epoch = 0
        """The epoch whose loader is iterated over next."""
        self._tell = tell
        self._wrapping = Wrapping()
        self._exchanged: list[tuple[Any, Any, Any]] = []

    def attach(self) -> None:
        """Number the batches of every loader for training from now on; the last to exchange its dataset."""
        self._wrapping.wrap(self.trainer, "get_train_dataloader", self._around_loader)

    def detach(self) -> None:
        """Put everything back."""
        self._wrapping.restore()
        while self._exchanged:
            loader, dataset, batches = self._exchanged.pop()
            vars(loader).update(dataset=dataset, batch_sampler=batches)

    def _around_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = original(*args, **kwargs)
            self._exchange(loader)
            return loader

        return get_train_dataloader

    def _exchange(self, loader: Any) -> None:
        from torch.utils.data import DataLoader, IterableDataset

        inner = vars(loader).get("base_dataloader", loader)  # accelerate keeps torch's loader inside its own
        if isinstance(inner, DataLoader) and not inner.num_workers:
            return  # the main process draws, and its generators are part of every state
        if (
            not isinstance(inner, DataLoader)
            or isinstance(inner.dataset, IterableDataset)
            or inner.batch_sampler is None
        ):
            why = (
                "they are a stream"
                if isinstance(getattr(inner, "dataset", None), IterableDataset)
                else "no batches are drawn"
            )
            self._tell("exact-data-resume", f"exact_data_resume has no effect on these training data: {why}")
            return
        self._exchanged.append((inner, inner.dataset, inner.batch_sampler))
        # torch refuses others so that they cannot disagree; these have the same places.
        vars(inner).update(
            dataset=SeededRecords(inner.dataset, inner.collate_fn),
            batch_sampler=NumberedBatches(inner.batch_sampler, self._name),
        )

    def _name(self) -> str:
        args = self.trainer.args
        seed = args.seed if getattr(args, "data_seed", None) is None else args.data_seed
        return f"{seed}/{args.process_index}/{self.epoch}"


def seed_all(name: str, owners: Sequence[Any]) -> None:
    """Seed the generators of python, numpy and torch in this process, and those that these owners keep for themselves."""
    import numpy as np
    import torch

    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # everybody's generator is what collators draw from
    torch.default_generator.manual_seed(seed)
    for owner in owners:
        for own in _generators_of(owner, DEEPEST, set()):
            if isinstance(own, torch.Generator):
                own.manual_seed(seed)
            elif isinstance(own, np.random.Generator):
                own.bit_generator.state = type(own.bit_generator)(seed).state
            else:
                own.seed(seed if isinstance(own, random.Random) else seed % (1 << 32))


def _generators_of(thing: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield the random generators that an object holds: in its attributes, its small containers or around a function."""
    import numpy as np
    import torch

    if id(thing) in seen or not depth:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
        yield thing
        return
    if isinstance(thing, str | bytes | int | float | torch.Tensor | torch.nn.Module | np.ndarray | type):
        return
    if (
        getattr(thing, "seed", None) is not None
        and getattr(thing, "generator", 0) is None
        and hasattr(thing, "create_rng")
    ):
        thing.create_rng()  # collators of transformers make theirs when they are first called, which would be too late
    for inner in _within(thing):
        yield from _generators_of(inner, depth - 1, seen)


def _within(thing: Any) -> Iterator[Any]:
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, dict | list | tuple):
        if len(thing) <= MOST_ENTRIES:
            yield from thing.values() if isinstance(thing, dict) else thing
    else:
        yield getattr(thing, "__self__", None)
        for cell in getattr(thing, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        own = getattr(thing, "__dict__", None)
        if isinstance(own, dict) and len(own) <= MOST_ENTRIES:
            yield from own.values()
