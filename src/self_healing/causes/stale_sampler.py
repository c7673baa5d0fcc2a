"""The cause `stale-sampler`."""

from __future__ import annotations

from ..actions.alert import Alert
from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

RATIO = "sampling/importance_sampling_ratio/min"
DIFFERENCE = "sampling/sampling_logp_difference/mean"


class StaleSampler(Cause):
    """Completions come from weights that the policy has long left behind.

    The server that generates holds older weights than the ones being trained. Importance sampling corrects for a
    small difference; once the smallest ratio nears 0 or the mean log-probability difference exceeds 1.0 (healthy:
    above 0.1 and below 0.1) the correction is worthless and updates point anywhere.
    """

    explains = (
        "loss-spike", "loss-divergence", "gradient-explosion", "gradient-norm-growth", "kl-runaway", "loss-not-finite",
        "sampler-mismatch", "reward-collapse",
    )  # fmt: skip
    confirm = "Synchronize the server's weights before every step for a while: ratios that return to 1 settle it."
    fixes = (
        "Lower vllm_sync_interval (Axolotl), so that the server gets new weights more often.",
        "Lower steps_per_generation (TRL), so that completions are used before the policy has moved on.",
        "Set off_policy_mask_threshold, for example to 0.5, to leave stale samples out.",
        "Set importance_sampling_level: token for a finer correction.",
    )
    remedy = (
        rung(Alert(), success=0.2),
        rung(RollBack(), RewarmLearningRate(), success=0.4),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def ladder(self, incident: Incident) -> Ladder:
        """Leave the mismatch itself to its rule, which names the arguments: nothing of it can be changed live."""
        return () if incident.name == "sampler-mismatch" else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Read the smallest importance ratio and the mean log-probability difference."""
        ratio, difference = finite_latest(past, RATIO), finite_latest(past, DIFFERENCE)
        weight, found = 0.0, []
        if ratio is not None and ratio < 0.1:
            weight = 0.65 if ratio < 0.01 else 0.4
            found.append(f"the smallest importance ratio is {ratio:.3g}; above 0.1 is healthy")
        if difference is not None and abs(difference) > 0.1:
            weight = max(weight, 0.65 if abs(difference) > 1.0 else 0.4)
            found.append(f"log-probabilities differ by {difference:.3g} on average; below 0.1 is healthy")
        return Evidence(weight=weight, found=tuple(found)) if found else None
