"""Which incidents may have harmed the weights, so that states taken since are not to be trusted."""

from __future__ import annotations

from ...core.failure import FailureType, Severity
from ...core.incident import Incident

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


def may_have_harmed(incident: Incident) -> bool:
    """Say whether the weights are probably not what they should be because of it."""
    return incident.severity >= Severity.ERROR and is_unhealthy(incident)


def is_unhealthy(incident: Incident) -> bool:
    """Say whether it speaks against the states before it that they have proved themselves."""
    is_of_the_weights = incident.failure in HARMFUL or incident.name in OF_THE_STATE
    return incident.severity > Severity.INFO and is_of_the_weights and incident.name not in HELD_BACK
