"""The batches of a loop, as it takes them from us: what is due between two steps happens when the next one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import PlainSession
    from .unguarded import UnguardedRun

TWO_AT_ONCE = (
    "run.batches was iterated over again before this epoch was at its end: a run hands out one epoch at a time, and knows of one "
    "place in the data to go back to. Of several loaders hand out the batches together, with run.batches(zip(loader, other)); data "
    "that are not trained on, as in an evaluation, come from their loader itself"
)


class Feed:
    """One epoch over a loader; after a return to an earlier epoch, the rest of that one and all up to this."""

    def __init__(self, session: PlainSession | UnguardedRun, loader: Any) -> None:
        self._session = session
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        session = self._session
        if session.is_over or not session.enter_epoch(self._loader):
            return
        number = session.returns.epochs
        try:
            while True:
                if session.returns.epochs != number:  # the data would be those of the other one
                    raise RuntimeError(TWO_AT_ONCE)
                is_there, batch = session.next_batch()
                if not is_there:
                    return
                yield batch
        finally:
            if session.returns.epochs == number:  # else the epoch that is left is another's
                session.leave_epoch()
