"""Where the time of a guarded training goes: calls around what takes it, and lines in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...core.goodput import Spending, TimeAccount
from ...core.notes import SPENT
from ..wrapping import Wrapping

if TYPE_CHECKING:
    from ..rollback.state_keeper import StateKeeper
    from .run_desk import RunDesk

EVERY_S = 60.0
"""How often the ledger is told while a training runs, so that little is lost with a process that is killed."""


class TimeSpent:
    """The account of one training, kept by the thread that trains."""

    def __init__(self, account: TimeAccount) -> None:
        self.account = account
        self.goodput = account.goodput
        self._thread = threading.get_ident()
        self._told_s = account.settled_s

    def attach(self, trainer: Any, keeper: StateKeeper | None, wrapping: Wrapping) -> None:
        """Stand around evaluations, saves and returns; last, so that what others do about them is part of it."""
        for name, kind in (("_save_checkpoint", Spending.SAVING), ("evaluate", Spending.EVALUATING)):
            if hasattr(trainer, name):
                wrapping.wrap(trainer, name, self._around(kind))
        if keeper is not None:
            wrapping.wrap(keeper.loop, "return_to", self._around(Spending.RESTORING))

    def spent_on(self, kind: Spending) -> AbstractContextManager[None]:
        """Return a context for something that takes time; what other threads do meanwhile takes none."""
        return self.account.spent_on(kind) if threading.get_ident() == self._thread else nullcontext()

    def stalled(self) -> AbstractContextManager[None]:
        """Return a context for a pause."""
        return self.spent_on(Spending.STALLED)

    def tell_now_and_then(self, desk: RunDesk) -> None:
        """Write to the ledger where that was some time ago."""
        if self.account.settled_s - self._told_s >= EVERY_S:
            self.tell(desk)

    def tell(self, desk: RunDesk) -> None:
        """Write to the ledger what was spent up to now."""
        spent = {kind: round(seconds, 3) for kind, seconds in self.account.seconds().items()}
        self._told_s = self.account.settled_s
        total = sum(spent.values())
        parts = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in spent.items() if seconds)
        desk.record(
            SPENT,
            {
                "text": f"{100 * self.goodput():.1f} % of {total:.1f} s were productive: {parts}",
                "goodput": round(self.goodput(), 6),
                "seconds": {str(kind): seconds for kind, seconds in spent.items()},
                "first_step": self.account.first_step,
            },
        )

    def _around(self, kind: Spending) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                with self.spent_on(kind):
                    return original(*args, **kwargs)

            return timed

        return around
