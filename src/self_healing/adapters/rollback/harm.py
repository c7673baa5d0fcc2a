"""Which incidents may have harmed the weights, so that states taken since are not to be trusted."""

from __future__ import annotations

from ...core.failure import FailureType, Severity
from ...core.incident import Incident
from ...core.lifecycle import Case

HARMFUL = frozenset(
    {
        FailureType.DIVERGENCE,
        FailureType.GRADIENT_EXPLOSION,
        FailureType.LOSS_SPIKE,
        FailureType.NAN_LOSS,
        FailureType.RL_COLLAPSE,
    }
)
"""Failures that may have harmed the weights."""
OF_THE_STATE = frozenset({"unexplained-state"})
"""Rules about the weights themselves, whatever class of failure they belong to."""
SEEN_IN_NORMS = frozenset({"weights-not-finite"})
"""Rules of harm that the norms of a state show: one that is intact was taken before it, whenever it began."""
HELD_BACK = frozenset({"loss-not-finite", "gradient-not-finite", "eval-not-finite"})
"""Rules of failures whose updates were never applied, so that the weights are as they were."""


def is_onset_known(incident: Incident) -> bool:
    """Say whether the states from before it can be told from those since: by the step where it began, or by themselves."""
    return incident.onset_step is not None or incident.name in SEEN_IN_NORMS


def harmed_since(case: Case) -> int | None:
    """Return the first step whose state an open incident makes sick, None where it makes none sick.

    None, too, where the run has returned to before it and it was not seen since: what is trained now is not what was
    harmed. Where it is not known when it began, the state that was returned to may hold the harm already.
    """
    incident = case.incident
    if not may_have_harmed(incident):
        return None
    is_before = case.returned_to is not None and case.returned_to < incident.began
    return None if is_before and is_onset_known(incident) else incident.began


def proved_harmless(case: Case) -> bool:
    """Say whether an incident is over and has harmed nothing: the run is well again with the weights that it was seen with.

    Not of one about the weights themselves: no loss has to show what an audit has found, and it is found only once.
    """
    return case.has_healed_by_itself and case.incident.name not in OF_THE_STATE | SEEN_IN_NORMS


def may_have_harmed(incident: Incident) -> bool:
    """Say whether the weights are probably not what they should be because of it."""
    return incident.severity >= Severity.ERROR and is_unhealthy(incident)


def is_unhealthy(incident: Incident) -> bool:
    """Say whether it speaks against the states before it that they have proved themselves."""
    is_of_the_weights = incident.failure in HARMFUL or incident.name in OF_THE_STATE
    return incident.severity > Severity.INFO and is_of_the_weights and incident.name not in HELD_BACK
