"""What a statistic is: a declaration that a rule lists, and the tracker that History builds and feeds for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

LARGEST = 1e100
"""Values are clamped to this size so that no square or difference overflows."""

LASTING = 24
"""Withheld samples from which a change is the new normal and not a spike that has passed."""


class Tracker:
    """Recursive state behind one declared statistic of one metric."""

    saved: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the state; numbers, booleans, None or deques of numbers."""

    def see(self, x: float, /) -> None:
        """Read the finite observation `x` against what is known so far and update the evidence."""

    def admit(self, x: float, /) -> None:
        """Let `x` into what is considered normal."""

    def rebase(self, values: list[float], /) -> None:
        """Take samples that an incident withheld as the new normal, oldest first; there are at least `LASTING`."""
        for x in values:
            self.admit(x)

    def pass_over(self) -> None:
        """End a short incident: its samples are left out, and its evidence too unless it is still growing."""
        self.forget_evidence()

    def forget_evidence(self) -> None:
        """Drop whatever speaks for a change, keep what is known as normal."""

    def state_dict(self) -> dict[str, object]:
        """Return the whole state as plain JSON values."""
        state: dict[str, object] = {}
        for name in self.saved:
            value = getattr(self, name)
            state[name] = list(value) if isinstance(value, deque) else value
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over a state written by `state_dict`; later readings are bit-identical."""
        missing = [name for name in self.saved if name not in state]
        if missing:
            msg = f"state of {type(self).__name__} lacks {', '.join(missing)}"
            raise ValueError(msg)
        for name in self.saved:
            value = state[name]
            current = getattr(self, name)
            if isinstance(current, deque):
                if not isinstance(value, list):
                    msg = f"state {name!r} of {type(self).__name__} must be a list"
                    raise ValueError(msg)  # noqa: TRY004  # the file is wrong, not the call
                value = deque(value, maxlen=current.maxlen)
            setattr(self, name, value)
        self.restored()

    def restored(self) -> None:
        """Rebuild what is derived from the saved state."""


TrackerT = TypeVar("TrackerT", bound=Tracker)


@dataclass(frozen=True)
class Statistic:
    """Declaration of a statistic that a rule needs; equal declarations share one tracker."""

    metric: str

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics this one reads, which therefore run before it."""
        return ()

    def build(self, trackers: Trackers, /) -> Tracker:
        """Make the tracker; `trackers` holds those of `needs`."""
        raise NotImplementedError


class Tracked(Statistic, Generic[TrackerT]):
    """A declaration that says which class of tracker it makes, so that readers know its attributes."""


class Trackers:
    """One tracker per distinct declaration."""

    def __init__(self) -> None:
        self.by_declaration: dict[Statistic, Tracker] = {}

    def __getitem__(self, declaration: Tracked[TrackerT]) -> TrackerT:
        """Return the tracker of a declaration, with the type the declaration promises."""
        return self.by_declaration[declaration]  # type: ignore[return-value]  # `build` made it

    def add(self, declaration: Statistic) -> None:
        """Build the declared tracker and those it reads, unless they are there already."""
        if declaration in self.by_declaration:
            return
        for needed in declaration.needs:
            self.add(needed)
        self.by_declaration[declaration] = declaration.build(self)
