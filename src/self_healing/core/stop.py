"""Budgets as small callables of one argument that compose with `|`: `per_class(5) | per_run(20)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .failure import FailureType


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What recoveries have cost so far, as one class of failure sees it."""

    failure: FailureType
    recent: int
    """Recoveries of this class within the last `WINDOW_STEPS` trained steps."""
    total: int
    """Recoveries of every class in the whole run, earlier processes included."""
    seconds: float = 0.0
    """Time spent on recoveries."""


WINDOW_STEPS = 1000
"""The steps over which recoveries of one class are counted."""


class _Composable:
    def __or__(self, other: Budget) -> Budget:
        return _Any(self, other)  # type: ignore[arg-type]  # every subclass is a Budget

    def __ror__(self, other: Budget) -> Budget:
        return _Any(other, self)  # type: ignore[arg-type]


class Budget(Protocol):
    """Says why no more recoveries are allowed, or nothing."""

    def __call__(self, spent: Spent) -> str | None:
        """Say why no more recoveries are allowed, or nothing."""

    def __or__(self, other: Budget) -> Budget: ...


class _Any(_Composable):
    def __init__(self, first: Budget, second: Budget) -> None:
        self.first, self.second = first, second

    def __call__(self, spent: Spent) -> str | None:
        return self.first(spent) or self.second(spent)


class per_class(_Composable):  # noqa: N801  # reads as a word in a sentence, like tenacity's
    """At most this many recoveries of one class of failure within 1,000 steps."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def __call__(self, spent: Spent) -> str | None:
        """Say whether the class has used up its attempts."""
        if spent.recent < self.attempts:
            return None
        return (
            f"{spent.recent} recoveries from {spent.failure} within {WINDOW_STEPS} steps; the limit is {self.attempts}"
        )


class per_run(_Composable):  # noqa: N801
    """At most this many recoveries in the whole run."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def __call__(self, spent: Spent) -> str | None:
        """Say whether the run has used up its attempts."""
        if spent.total < self.attempts:
            return None
        return f"{spent.total} recoveries in this run; the limit is {self.attempts}"


class after_hours(_Composable):  # noqa: N801
    """At most this much time spent on recoveries."""

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def __call__(self, spent: Spent) -> str | None:
        """Say whether recoveries have taken too long altogether."""
        if spent.seconds < self.hours * 3600:
            return None
        return f"recoveries took {spent.seconds / 3600:.1f} hours; the limit is {self.hours:g}"
