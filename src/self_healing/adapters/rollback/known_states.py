"""What is known of the states that a run has kept: how far each can be trusted, and which one to return to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from ...core.lifecycle import Case
from ...snapshots.verdicts import (
    OpenIncident,
    SavedState,
    StateVerdict,
    Tier,
    after_incident,
    after_observation,
    at_depth,
    newest_for_a_crash,
    newest_for_an_incident,
)
from .harm import harmed_since, is_onset_known, is_unhealthy


class KnownStates:
    """The states in the order in which they were taken, each with what is thought of it by now."""

    def __init__(self) -> None:
        self.states: tuple[SavedState, ...] = ()
        self.open: OpenIncident | None = None
        """What may be harming the run since some step."""

    def get(self, key: str) -> SavedState | None:
        """Return what is known of a state."""
        return next((state for state in self.states if state.key == key), None)

    def add(self, key: str, step: int) -> None:
        """Take note of a state in memory."""
        self.states = (*self.states, SavedState(key=key, step=step, tier=Tier.MEMORY))

    def keep_only(self, keys: Collection[str]) -> tuple[SavedState, ...]:
        """Forget the states that are kept no longer, and return them."""
        gone = tuple(state for state in self.states if state.key not in keys)
        self.states = tuple(state for state in self.states if state.key in keys)
        return gone

    def judged(self, key: str, verdict: StateVerdict) -> None:
        """Take note of what is thought of a state."""
        self.states = tuple(replace(state, verdict=verdict) if state.key == key else state for state in self.states)

    def observed(self, step: int, cases: Iterable[Case], *, good_after: int) -> None:
        """Count a step, with what is open at its end.

        What the run has returned from makes no state sick any more, but while it is watched none has proved itself either.
        """
        known = list(cases)
        if not self.suspect(known):
            self.open = None
        healthy = not any(is_unhealthy(case.incident) for case in known)
        self.states = after_observation(self.states, step, healthy=healthy, needed={Tier.MEMORY: good_after})

    def newest_good(self) -> SavedState | None:
        """Return the newest state that has proved itself."""
        return newest_for_an_incident(self.states, None)

    def choose(
        self,
        is_in_reach: Callable[[str], bool],
        step: int,
        *,
        before_step: int | None,
        depth: int,
        min_steps: int | None,
    ) -> SavedState | None:
        """Return the state to go back to, None where there is none that will do."""
        usable = [state for state in self.states if is_in_reach(state.key)]
        if min_steps is not None:
            usable = [state for state in usable if state.step <= step - min_steps] or usable[:1]
        if before_step is None and self.open is None:
            newest = newest_for_a_crash(usable)
        elif before_step is None and self.open is not None:
            newest = newest_for_an_incident(usable, self.open.onset if self.open.is_onset_known else None)
        else:
            newest = newest_for_an_incident(usable, before_step)
        return None if newest is None else at_depth(usable, newest, depth=depth, step=step)

    def harmed_since(self, onset: int, name: str, *, is_onset_known: bool = True) -> None:
        """Take note of trouble that may have harmed every state since its first step."""
        if self.open is None or onset < self.open.onset:
            self.open = OpenIncident(name, onset, is_onset_known=is_onset_known)
            self.states = after_incident(self.states, self.open)

    def suspect(self, cases: Iterable[Case]) -> bool:
        """Take note of what may have harmed states by now; say whether anything may."""
        harmful = [(case, since) for case in cases if (since := harmed_since(case)) is not None]
        for case, since in harmful:
            self.harmed_since(since, case.incident.name, is_onset_known=is_onset_known(case.incident))
        return bool(harmful)
