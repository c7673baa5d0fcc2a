"""Stands for a loader during one guarded training: the batch of the update at hand can be had once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState


class LoaderEmptyError(ValueError):
    """The loader has not a single batch; a loop that fetches for ever would never come back."""


class Batches:
    """Gives what the loader gives, for ever, from one iterator that outlives the loop.

    Shuffling draws random numbers when an epoch begins. Where a batch is given again they are drawn already, so that the
    generators are put where they stood after it was fetched.
    """

    def __init__(self, loader: Any, before_fetch: Callable[[], None]) -> None:
        self.loader = loader
        self._before_fetch = before_fetch
        """Is called before an update gets a new batch, while the run is between two updates."""
        self._live: Iterator[Any] | None = None
        self._kept: tuple[Any, RandomState] | None = None
        self._comes_again = False

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._next()

    def give_again(self) -> None:
        """Begin with the batch of the update at hand, if it was fetched."""
        self._comes_again = True

    def leave_out(self) -> None:
        """Let the next batch take the place of the one of the update at hand."""
        self._kept = None

    def _next(self) -> Any:
        from ...tensors.random_state import RandomState

        if self._comes_again:  # the state before this update is kept already
            self._comes_again = False
            if self._kept is not None:
                batch, after_fetch = self._kept
                after_fetch.restore()
                return batch
        else:
            self._before_fetch()
        self._kept = None
        batch = self._fetch()
        self._kept = batch, RandomState.capture()
        return batch

    def _fetch(self) -> Any:
        if self._live is not None:
            for batch in self._live:
                return batch
        self._live = iter(self.loader)
        for batch in self._live:
            return batch
        raise LoaderEmptyError(
            f"the loader gives no batch: {len(self.loader.dataset)} records, in batches of "
            f"{self.loader.batch_size or self.loader.total_batch_size}, of which incomplete ones are left out"
        )
