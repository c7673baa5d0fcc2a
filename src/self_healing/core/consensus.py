"""How many ranks come to one plan: a transport gathers everybody's wish, `merge` folds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .plan import Plan


class Transport(Protocol):
    """Brings the wishes of all ranks to all ranks."""

    def gather(self, wish: Plan | None) -> Sequence[Plan | None]:
        """Return every rank's wish; all ranks call this at the same step boundary."""
        ...


class LocalTransport:
    """The transport of a run with one process: its own wish is everybody's."""

    def gather(self, wish: Plan | None) -> Sequence[Plan | None]:
        """Return the one wish there is."""
        return (wish,)
