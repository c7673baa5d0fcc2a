"""Three verdicts on a saved state: intact, good, sick. Pure; every function returns new values.

A state of step s holds the updates of the steps 1 to s. It is *intact* when nothing speaks against it at the moment
it is taken, *good* when the observations after it were healthy too, and *sick* when trouble began at or before its
last step. Sick is final where the run was returned or changed for that trouble, or the state is broken itself: it is not
worth the risk while another one exists. Trouble that is over by itself has harmed nothing, for the weights it was seen
with have led to a healthy run: what was sick for it alone is what it would be without. The state before step 1 holds no
update that could have harmed it; it is good from the start and stays so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self


class Condition(StrEnum):
    """How far a saved state can be trusted."""

    UNKNOWN = "unknown"
    """Nothing was measured when it was taken."""
    INTACT = "intact"
    """Finite, norms in range, before any trouble that was known: good enough to return to after a crash."""
    GOOD = "good"
    """The observations after it were healthy too: good enough to return to after trouble in the training itself."""
    SICK = "sick"
    """An incident began before it, or its values are not finite: never returned to."""


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """A judgement on one saved state, with its reason."""

    condition: Condition = Condition.UNKNOWN
    because: str = ""
    but_for_it: Condition | None = field(default=None, compare=False)
    """What it would be but for an incident that is open and may be over by itself; None where sick is final."""

    @property
    def is_sick(self) -> bool:
        """Say whether the state must not be returned to."""
        return self.condition is Condition.SICK

    @property
    def survives_a_crash(self) -> bool:
        """Say whether the state may be returned to when only the process failed."""
        return self.condition in (Condition.INTACT, Condition.GOOD)


NOT_JUDGED = StateVerdict()
HALF_WRITTEN = StateVerdict(Condition.SICK, "it was being written over, and that has not come to its end")


class Tier(StrEnum):
    """Where a state is kept, which decides how long it must prove itself."""

    MEMORY = "memory"
    DEEP = "deep"
    """In memory, and proved for so long that the deepest return goes to it."""
    DISK = "disk"


GOOD_AFTER: Mapping[Tier, int] = {Tier.MEMORY: 32, Tier.DEEP: 128, Tier.DISK: 1024}
"""Healthy observations after which an intact state counts as good: what is kept longer is asked for more."""


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """Trouble that may have harmed the weights and is not over: a slow disk or a lost connection is none."""

    name: str
    onset: int
    """The first step that may be harmed, as far as is known."""
    is_onset_known: bool = True
    """False where it may have begun earlier: only states that have proved themselves are trusted then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """One state of the run and what is thought of it."""

    key: str
    """What it is found by: a folder, or the number of a slot in memory."""
    step: int
    tier: Tier = Tier.MEMORY
    verdict: StateVerdict = NOT_JUDGED
    healthy: int = 0
    """Healthy observations in a row since it was taken."""

    def judged(self, condition: Condition, because: str) -> Self:
        """Return it with another verdict."""
        return replace(self, verdict=StateVerdict(condition, because))


def first_state(key: str, tier: Tier = Tier.MEMORY) -> SavedState:
    """Return the state before step 1."""
    return SavedState(key=key, step=0, tier=tier, verdict=StateVerdict(Condition.GOOD, "the state before step 1"))


def verdict_when_taken(
    step: int,
    *,
    norms: Mapping[str, float] | None,
    open_incident: OpenIncident | None = None,
) -> StateVerdict:
    """Judge a state at the moment it is taken; whether training can have changed its norms so is for the audit to say.

    Args:
        step: The last step whose update it holds.
        norms: Norms of its tensors by name; None or empty where nothing was measured.
        open_incident: The incident with the earliest onset that is open.

    """
    broken = sorted(name for name, norm in (norms or {}).items() if not math.isfinite(norm))
    if broken:
        return StateVerdict(Condition.SICK, f"not finite: {_some(broken)}")
    if step == 0:
        return StateVerdict(Condition.GOOD, "the state before step 1")
    # After a return the run comes by its past once more: a state before the trouble is as good as the first time.
    if open_incident is not None and open_incident.onset <= step:
        return _suspected(open_incident, Condition.INTACT if norms else Condition.UNKNOWN)
    if not norms:
        return StateVerdict(Condition.UNKNOWN, "its values were not measured")
    return StateVerdict(Condition.INTACT, "finite, norms in range, before any trouble that is known")


def after_observation(
    states: tuple[SavedState, ...], step: int, *, healthy: bool, needed: Mapping[Tier, int] = GOOD_AFTER
) -> tuple[SavedState, ...]:
    """Return the states after an observation of a step: healthy ones add up to good, one that is not starts again.

    A good one in memory goes on to be proved, until the deepest return may go to it. The same tuple where none is on trial.
    """
    if not any([_is_on_trial(state) and step > state.step for state in states]):  # noqa: C419
        return states
    return tuple(
        [
            _observed(state, healthy=healthy, needed=needed) if _is_on_trial(state) and step > state.step else state
            for state in states
        ]
    )


def _is_on_trial(state: SavedState) -> bool:
    condition = state.verdict.condition
    return condition is Condition.INTACT or (condition is Condition.GOOD and state.tier is Tier.MEMORY)


def _observed(state: SavedState, *, healthy: bool, needed: Mapping[Tier, int]) -> SavedState:
    if not healthy:
        return replace(state, healthy=0)
    state = replace(state, healthy=state.healthy + 1)
    if state.verdict.condition is Condition.GOOD:
        is_deep = state.healthy >= needed.get(Tier.DEEP, GOOD_AFTER[Tier.DEEP])
        return replace(state, tier=Tier.DEEP) if is_deep else state
    if state.healthy < needed[state.tier]:
        return state
    return state.judged(Condition.GOOD, f"{state.healthy} healthy observations in a row after it")


def after_incident(states: Iterable[SavedState], incident: OpenIncident) -> tuple[SavedState, ...]:
    """Return the states after an incident was found: those that hold its first step are sick, good ones too."""
    return tuple(
        replace(state, verdict=_suspected(incident, state.verdict.condition))
        if state.step >= max(1, incident.onset) and not state.verdict.is_sick
        else state
        for state in states
    )


def _suspected(incident: OpenIncident, but_for_it: Condition) -> StateVerdict:
    return StateVerdict(Condition.SICK, f"{incident.name} began at step {incident.onset}", but_for_it)


def after_trouble(states: Iterable[SavedState], *, was_harmless: bool) -> tuple[SavedState, ...]:
    """Return the states after all that was open is over: what was sick for it alone is so for good, or not any more.

    One that is not begins to prove itself: nothing that was observed meanwhile speaks for it.
    """
    return tuple(
        state if state.verdict.but_for_it is None else _cleared(state) if was_harmless else _sick_for_good(state)
        for state in states
    )


def _cleared(state: SavedState) -> SavedState:
    assert state.verdict.but_for_it is not None
    because = f"{state.verdict.because}, and was over by itself"
    return replace(state, verdict=StateVerdict(state.verdict.but_for_it, because), healthy=0)


def _sick_for_good(state: SavedState) -> SavedState:
    return replace(state, verdict=replace(state.verdict, but_for_it=None))


def after_return(states: Iterable[SavedState], to_step: int) -> tuple[SavedState, ...]:
    """Return the states that are still in the run's past: what is observed from now on says nothing of the others."""
    return tuple(state for state in states if state.step <= to_step)


def newest_for_a_crash(states: Iterable[SavedState]) -> SavedState | None:
    """Return where to go when the process failed and the training was healthy."""
    return _newest(state for state in states if state.verdict.survives_a_crash)


def newest_for_an_incident(states: Iterable[SavedState], onset: int | None) -> SavedState | None:
    """Return where to go when the training itself is in trouble; where it began allows a newer state."""
    if onset is None:
        return _newest(state for state in states if state.verdict.condition is Condition.GOOD)
    return _newest(
        state for state in states if state.verdict.survives_a_crash and (state.step < onset or state.step == 0)
    )


MUCH_OLDER = 4
"""How many times as far back a state lies that counts as a much older one."""


def at_depth(states: Iterable[SavedState], newest: SavedState, *, depth: int, step: int) -> SavedState:
    """Return an older state than the newest that will do: a much older one at depth 1, one that is proved at depth 2.

    Proved is a state of the deep tier, further back than the one of depth 1; the oldest there is where none is.
    """
    older = [each for each in states if each.step < newest.step and each.verdict.survives_a_crash]
    if depth == 0 or not older:
        return newest
    far = _newest(each for each in older if step - each.step >= MUCH_OLDER * (step - newest.step))
    if depth == 1 and far is not None:
        return far
    beyond = newest if far is None else far
    deep = _newest(each for each in older if each.tier is Tier.DEEP and each.step < beyond.step) if depth > 1 else None
    return deep or min(older, key=lambda each: each.step)


def _newest(states: Iterable[SavedState]) -> SavedState | None:
    return max(states, key=lambda state: state.step, default=None)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
