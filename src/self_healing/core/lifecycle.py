"""The life of an incident: open, acting, watching, closed. Transitions are a table; anything else is a bug."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .failure import Effect, FailureType, Severity
from .incident import Incident
from .plan import Plan
from .verdict import Reference

RECENT = 8
"""Newest values of the watched metric that are compared with the reference."""
QUIET_AFTER = 8
"""Observations without a firing after which an incident nobody is acting on has passed."""
RECOVERED = "recovered"
"""The ending of an incident whose plan was watched to its end without seeing it again."""
YOUNG = 32
"""Observations for which a case that nobody acts on is watched closely all the same."""


class Phase(StrEnum):
    """Where an incident is in its life."""

    OPEN = "open"
    ACTING = "acting"
    WATCHING = "watching"
    CLOSED = "closed"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.OPEN: frozenset({Phase.ACTING, Phase.CLOSED}),
    Phase.ACTING: frozenset({Phase.WATCHING, Phase.OPEN, Phase.CLOSED}),
    Phase.WATCHING: frozenset({Phase.OPEN, Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}

Key = tuple[str, FailureType, str]
"""What tells cases apart: the rule, the class of failure (one rule reports every exception), and the subject."""


def key_of(incident: Incident) -> Key:
    """Return what tells an incident's case from others."""
    return incident.name, incident.failure, incident.subject


@dataclass
class Case:
    """One incident from its opening to its closing."""

    incident: Incident
    """The latest firing; its severity never falls while the case is open."""
    opened_step: int = 0
    phase: Phase = Phase.OPEN
    wants_plan: bool = True
    """True until the policy was asked about the incident as it is now."""
    holds_samples: bool = True
    """True while the metric's samples wait outside the baseline."""
    firings: int = 1
    age: int = 0
    """Observations of the metric it is paced by since it opened, or came back after a return."""
    quiet: int = 0
    """Likewise since it last fired."""
    watched: int = 0
    """Likewise since the plan was carried out."""
    watch: int = 0
    """Observations after which the plan is judged."""
    beyond_step: int | None = None
    """The step that must have been passed too, where the plan has returned to before it: the trouble was there."""
    plan: Plan | None = None
    excess_when_acted: float | None = None
    before: Reference | None = None
    """The metric before the incident began."""
    reference: Reference | None = None
    """What the metric is compared with when the plan is judged."""
    eval_before: float | None = None
    has_rewound: bool = False
    """The plan has returned the run to an earlier step."""
    returned_to: int | None = None
    """The step that the plan has returned the run to; None where it has not, or the trouble was seen again since."""
    looked_at: int | None = None
    """The step of the newest observation since the plan was carried out."""
    quiet_beyond: int = 0
    """Observations without a firing since the run has come past where the trouble was found before the return."""
    acted_s: float = 0.0
    """When the plan was carried out, by the adapter's clock."""
    was_acted_on: bool = False
    """The run was returned or its recipe changed while it was open; to hold still and watch is neither."""
    ending: str = ""
    """Why it was closed; empty while it is open."""
    unpaced: int = 0
    """Observations since the metric it is paced by was last reported."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def key(self) -> Key:
        """Return what tells this case from others."""
        return key_of(self.incident)

    @property
    def has_healed_by_itself(self) -> bool:
        """Whether it is over and the run is well again though nothing was done: its weights have led to that."""
        return self.ending == RECOVERED and not self.was_acted_on

    @property
    def asks(self) -> bool:
        """Whether the policy is still to be asked about it as it is now; what is only informative never is."""
        return self.wants_plan and self.incident.severity > Severity.INFO

    @property
    def is_under_way(self) -> bool:
        """Whether more is to be expected than that it stays as it is: it is new, grave, or being acted on."""
        return (
            self.age < YOUNG
            or self.wants_plan
            or self.phase is not Phase.OPEN
            or self.incident.severity >= Severity.ERROR
        )

    def move(self, phase: Phase) -> None:
        """Go to another phase; a transition that the table does not have is a programming error."""
        assert phase in TRANSITIONS[self.phase], f"{self.key}: {self.phase} -> {phase} is not a transition"
        self.phase = phase

    def fire(self, incident: Incident) -> bool:
        """Record that the rule fired again; say whether it is worse than it was."""
        worse = (incident.severity, incident.stage) > (self.incident.severity, self.incident.stage)
        severity = max(incident.severity, self.incident.severity)
        onset = self.incident.onset_step if self.incident.onset_step is not None else incident.onset_step
        if self.is_another_event(incident):
            onset = incident.onset_step
        elif self.has_rewound and onset is not None and incident.onset_step is not None:
            onset = min(onset, incident.onset_step)  # other data have come to where it was
        stage = max(incident.stage, self.incident.stage)
        self.incident = replace(incident, severity=severity, stage=stage, onset_step=onset)
        self.firings += 1
        self.quiet = self.quiet_beyond = 0
        self.returned_to = None
        return worse

    def is_another_event(self, incident: Incident) -> bool:
        """Say whether something began where the run was well already, after a return: what it has returned from was over."""
        if self.plan is None or self.beyond_step is None or incident.began <= self.beyond_step:
            return False
        long_enough = min(QUIET_AFTER + self.incident.looks_every - 1, self.plan.watch - 1)
        return self.quiet_beyond > max(1, long_enough)  # it counts the observation that shows it, too

    def relapsed(self, incident: Incident) -> None:
        """Ask for a plan again: an incident, which may be another rule's, has shown that the last one did not help."""
        if self.is_another_event(incident):  # what was done before it began is none of its business
            is_known = self.incident.onset_step is not None
            self.incident = replace(self.incident, step=incident.step, onset_step=incident.began if is_known else None)
        self.returned_to = None
        self.reopen()

    def feed(self, value: float | None, step: int) -> None:
        """Count one observation, of a step, and remember the metric's value."""
        self.age += 1
        self.quiet += 1
        self.unpaced = 0
        if self.phase is Phase.WATCHING:
            self.watched += 1
            self.looked_at = step
            self.quiet_beyond += self.beyond_step is not None and step > self.beyond_step
        if value is not None:
            self.recent.append(value)

    def start_acting(self, plan: Plan) -> None:
        """Record that a plan was chosen for this case."""
        if self.phase is not Phase.ACTING:
            self.move(Phase.ACTING)
        self.plan = plan
        self.wants_plan = False
        self.excess_when_acted = self.incident.excess

    def start_watching(
        self, *, rewound: bool, eval_before: float | None, at_s: float, returned_to: int | None = None
    ) -> None:
        """Record that the plan was carried out, and the step that it has returned to."""
        self.move(Phase.WATCHING)
        self.acted_s = at_s
        self.has_rewound = rewound
        self.was_acted_on |= rewound
        assert self.plan is not None
        self.watch = self.plan.watch
        self.beyond_step = self.plan.step if returned_to is not None and returned_to < self.plan.step else None
        self.returned_to, self.looked_at = returned_to, None
        self.watched = self.quiet = self.quiet_beyond = 0
        self.eval_before = eval_before
        # After a rollback the metric is compared with what it was before the trouble, else with the trouble itself.
        self.reference = self.before if rewound else Reference.of(tuple(self.recent))
        if rewound:
            self.holds_samples = False
        self.recent.clear()

    def is_watch_over(self, step: int) -> bool:
        """Say whether the plan can be judged after an observation of a step."""
        return self.watched >= self.watch and (self.beyond_step is None or step > self.beyond_step)

    def has_stayed_away(self) -> bool:
        """Say whether the run has come again to where the trouble was found, and it was not seen since the return."""
        is_there = self.looked_at is not None and self.plan is not None and self.looked_at >= self.plan.step
        return self.phase is Phase.WATCHING and self.returned_to is not None and is_there

    def is_over_if_completed(self) -> bool:
        """Say whether the end of a completed run closes it: a few observations have to do where no more can follow."""
        is_held = self.plan is None or self.plan.hold_longest is not None
        return not is_held and self.has_stayed_away() and not self.is_worse()

    def is_worse(self) -> bool:
        """Say whether the metric is clearly worse than what a changed recipe is judged by."""
        if self.plan is None or self.plan.effect is not Effect.RECIPE or self.reference is None:
            return False
        return self.reference.is_worse(tuple(self.recent))

    def reopen(self) -> None:
        """Ask for a plan again: the last one was refused, failed, or did not help."""
        if self.phase is not Phase.OPEN:
            self.move(Phase.OPEN)
        if self.has_rewound:  # else what comes back after many steps would be over, or normal, at once
            self.age = self.quiet = 0
        self.wants_plan = True
        self.holds_samples = True

    def is_healing(self) -> bool:
        """Say whether the excess has fallen by a quarter since the last action: then more patience is worth it."""
        before, now = self.excess_when_acted, self.incident.excess
        return before is not None and now is not None and now <= 0.75 * before


class OpenCases:
    """The incidents that are open now: at most one per rule and class of failure."""

    def __init__(self) -> None:
        self._cases: dict[Key, Case] = {}

    def __iter__(self) -> Iterator[Case]:
        return iter(tuple(self._cases.values()))

    def __len__(self) -> int:
        return len(self._cases)

    def get(self, key: Key) -> Case | None:
        """Return an open case."""
        return self._cases.get(key)

    def add(self, case: Case) -> Case:
        """Begin a case."""
        self._cases[case.key] = case
        return case

    def remove(self, case: Case) -> None:
        """End a case."""
        case.move(Phase.CLOSED)
        self._cases.pop(case.key, None)

    def of_class(self, failure: FailureType) -> list[Case]:
        """Return the open cases of a class of failure."""
        return [case for case in self._cases.values() if case.incident.failure is failure]

    def held_metrics(self) -> frozenset[str]:
        """Return the metrics whose samples must wait outside the baseline; what is only informative holds none.

        Nor does a number that is not finite, which never gets there: the finite ones after it are what training is like.
        """
        if not self._cases:
            return frozenset()
        return frozenset(
            case.incident.metric
            for case in self._cases.values()
            if case.holds_samples and case.incident.metric is not None and case.incident.severity > Severity.INFO
            and case.incident.failure is not FailureType.NAN_LOSS
        )  # fmt: skip
