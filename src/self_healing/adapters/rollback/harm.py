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
HELD_BACK = frozenset({"loss-not-finite", "gradient-not-finite", "eval-not-finite"})
"""Rules of failures whose updates were never applied, so that the weights are as they were."""


def may_have_harmed(incident: Incident) -> bool:
    """Say whether the weights may not be what they should be because of it."""
    return incident.severity > Severity.INFO and incident.failure in HARMFUL and incident.name not in HELD_BACK
