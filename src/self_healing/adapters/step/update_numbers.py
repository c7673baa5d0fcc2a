"""The numbers by which an optimizer makes an update: the rate, the betas, the momentum and the decay of each group.

Schedules change any of them from step to step. A step that is done again needs those that it had, and what a number of
steps can have done to a weight follows from those of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NAMES = ("lr", "betas", "momentum", "weight_decay")

Habits = tuple[float, float, float, float]
"""Both betas, the momentum and the decay of a group."""


@dataclass(frozen=True, slots=True)
class UpdateNumbers:
    """Those of one update, as the groups had them; None for what a group does not have.

    Few lists and no object for each group: there may be hundreds, and steps are many.
    """

    lr: Sequence[Any] = ()
    others: tuple[Sequence[Any], Sequence[Any], Sequence[Any]] = ((), (), ())
    """Betas, momenta and decays."""
    scale: float = 1.0
    """What the rates were multiplied by besides."""

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]], scale: float = 1.0) -> UpdateNumbers:
        """Take note of what the groups have now; this is done in every step."""
        return cls(
            [rate if type(rate := group["lr"]) is float else _apart(rate) for group in groups],
            (
                [group.get("betas") for group in groups],
                [group.get("momentum") for group in groups],
                [group.get("weight_decay") for group in groups],
            ),
            scale,
        )

    @property
    def rate(self) -> float:
        """The rate of the first group, cuts included."""
        return self._rate_by(self.lr[0]) if self.lr else 0.0

    @property
    def rates(self) -> list[float]:
        """Those of all groups; 0 where one has none because the optimizer computes its own."""
        return [self._rate_by(rate) for rate in self.lr]

    def _rate_by(self, rate: Any) -> float:
        return 0.0 if rate is None else float(rate) * self.scale

    @property
    def habits(self) -> list[Habits]:
        """What else the groups step by; for betas those of torch where one has others or none."""
        return [_habits_of(*each) for each in zip(*self.others, strict=True)]

    def put_back(self, groups: Sequence[dict[str, Any]]) -> None:
        """Give them back to the groups; one that has come since keeps its own."""
        for group, *numbers in zip(groups, self.lr, *self.others, strict=False):
            for name, number in zip(NAMES, numbers, strict=True):
                if name not in group:
                    continue
                if hasattr(group[name], "copy_") and hasattr(number, "copy_"):  # others may refer to the tensor
                    group[name].copy_(number)
                else:
                    group[name] = number

    @contextmanager
    def applied(self, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Let the groups have them for one update."""
        now = UpdateNumbers.of(groups)
        self.put_back(groups)
        try:
            yield
        finally:
            now.put_back(groups)


def _apart(rate: Any) -> Any:
    """Return a rate as it is now: schedulers write to one that is a tensor."""
    return rate.clone() if hasattr(rate, "clone") else rate


def _habits_of(betas: Any, momentum: Any, decay: Any) -> Habits:
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2 and None not in betas
    first, second = betas if is_pair else (0.9, 0.999)
    return float(first), float(second), float(momentum or 0.0), float(decay or 0.0)
