"""What a cause must say of a past: the form in which the stories for and against each cause are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from self_healing.core.diagnosis import CONVINCING


@dataclass(frozen=True, kw_only=True)
class Story:
    """A past on which a cause must speak up with at least this weight, or rule itself out."""

    cause: str
    title: str
    rule: str
    weight: float | None
    """The least weight expected; None where the cause must be ruled out."""
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    facts: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    step: int = 1000
    onset: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


def speaks(
    cause: str, title: str, rule: str, series: Mapping[str, Sequence[float]] | None = None, *, least: float = CONVINCING,
    step: int = 1000, onset: int | None = None, in_a_row: int = 0, **facts: float | str | bool,
) -> Story:  # fmt: skip
    return Story(
        cause=cause, title=title, rule=rule, weight=least, series=series or {}, facts=facts, step=step, onset=onset,
        numbers={"in_a_row": in_a_row},
    )  # fmt: skip


def ruled_out(
    cause: str, title: str, rule: str, series: Mapping[str, Sequence[float]] | None = None, *, step: int = 1000,
    onset: int | None = None, in_a_row: int = 0, **facts: float | str | bool,
) -> Story:  # fmt: skip
    return Story(
        cause=cause, title=title, rule=rule, weight=None, series=series or {}, facts=facts, step=step, onset=onset,
        numbers={"in_a_row": in_a_row},
    )  # fmt: skip
