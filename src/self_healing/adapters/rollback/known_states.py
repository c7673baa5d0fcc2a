"""What is known of the states that a run has kept: how far each can be trusted, and which one to return to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from ...core.incident import Incident
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
from .harm import is_unhealthy, may_have_harmed


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

    def observed(self, step: int, incidents: Iterable[Incident], *, good_after: int) -> None:
        """Count a step, with what is open at its end."""
        known = list(incidents)
        harmful = [each for each in known if may_have_harmed(each)] if known else []
        for incident in harmful:
            self._suspect(incident)
        if not harmful:
            self.open = None
        healthy = not known or not any(map(is_unhealthy, known))
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
        else:
            onset = before_step if before_step is not None or self.open is None else self.open.onset
            newest = newest_for_an_incident(usable, onset)
        return None if newest is None else at_depth(usable, newest, depth=depth, step=step)

    def harmed_since(self, onset: int, name: str) -> None:
        """Take note of trouble that may have harmed every state since its first step."""
        if self.open is None or onset < self.open.onset:
            self.open = OpenIncident(name, onset)
            self.states = after_incident(self.states, self.open)

    def _suspect(self, incident: Incident) -> None:
        self.harmed_since(incident.onset_step if incident.onset_step is not None else incident.step, incident.name)
