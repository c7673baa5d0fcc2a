"""Where the time of a whole run went, over all its processes, from what each has last written of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.goodput import Spending
from ..core.ledger import Entry
from .clean import seconds_of, step_of


def has_trained(seconds: Mapping[Spending, float]) -> bool:
    """Say whether an account tells of steps: before its first one a process does not know where it will go on."""
    return any(seconds[kind] > 0 for kind in (Spending.PRODUCTIVE, Spending.REPLAYED, Spending.MADE_UP))


def trained_in_vain(productive: float, first_step: int, last_step: int, kept_step: int) -> float:
    """Return how much of the productive time of an attempt was for steps beyond one; all are taken to be equally long."""
    trained = last_step - first_step
    if trained <= 0 or last_step <= kept_step:
        return 0.0
    return productive * (1 - max(0, kept_step - first_step) / trained)


@dataclass(slots=True)
class _Attempt:
    number: int
    first_step: int
    last_step: int
    seconds: dict[Spending, float]

    def undo_after(self, step: int) -> None:
        """Take the steps beyond one for replayed."""
        lost = trained_in_vain(self.seconds[Spending.PRODUCTIVE], self.first_step, self.last_step, step)
        self.seconds[Spending.PRODUCTIVE] -= lost
        self.seconds[Spending.REPLAYED] += lost
        self.last_step = max(self.first_step, min(self.last_step, step))


class SpentTime:
    """Takes in the notes of all attempts; what a later attempt began before was trained in vain by earlier ones."""

    def __init__(self) -> None:
        self._attempts: list[_Attempt] = []

    def take(self, entry: Entry) -> None:
        """Take in what an attempt has spent up to then."""
        first = step_of(entry.body.get("first_step")) or 0
        told: Any = entry.body.get("seconds")
        known = told if isinstance(told, Mapping) else {}
        seconds = {kind: seconds_of(known.get(kind)) for kind in Spending}
        if self._attempts and self._attempts[-1].number == entry.attempt:
            self._attempts.pop()
        for earlier in self._attempts if has_trained(seconds) else ():
            earlier.undo_after(first)
        self._attempts.append(_Attempt(entry.attempt, first, max(first, entry.step), seconds))

    def to_json(self) -> dict[str, Any]:
        """Return the sums, and the share that was productive; nothing where nobody has told of it."""
        if not self._attempts:
            return {}
        sums = {str(kind): sum(each.seconds[kind] for each in self._attempts) for kind in Spending}
        total = sum(sums.values())
        return {
            "goodput": round(sums[Spending.PRODUCTIVE] / total, 6) if total > 0 else 0.0,
            "seconds": {kind: round(seconds, 3) for kind, seconds in sums.items()},
            "attempts": len(self._attempts),
        }
