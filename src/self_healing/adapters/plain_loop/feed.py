"""The batches of a loop, as it takes them from us: what is due between two steps happens when the next one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import PlainSession
    from .unguarded import UnguardedRun


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
        try:
            while True:
                is_there, batch = session.next_batch()
                if not is_there:
                    return
                yield batch
        finally:
            session.leave_epoch()
