"""The cause `insufficient-warmup`."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

ENOUGH_SHARE = 0.05
EARLY_SHARE = 0.1
EARLY_STEPS = 500


class InsufficientWarmup(Cause):
    """The learning rate reached its height before the optimizer knew the gradients.

    In the first steps the running averages are made of a handful of batches, so large updates go in nearly random
    directions. The run spikes at once, or is pushed into a flat region and stays on a plateau.
    """

    explains = (
        "loss-spike", "loss-divergence", "loss-plateau", "loss-not-finite", "gradient-not-finite",
        "gradient-explosion", "gradient-norm-growth", "dead-run",
    )  # fmt: skip
    confirm = "Start again with a warm-up of 10% of all steps: early trouble that goes away was the warm-up."
    fixes = ("Set warmup_steps to 5 to 10% of all steps.", "Lower the learning rate 2 to 5 times.")
    remedy = (
        rung(RollBack(), RewarmLearningRate(), success=0.6),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.5),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def ladder(self, incident: Incident) -> Ladder:
        """Leave a run that was dead from its start to its rule, which begins again from the first state."""
        return () if incident.name == "dead-run" else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Compare the warm-up's length with the run's and with where the trouble began."""
        warmup, total = number(past, "warmup_steps"), number(past, "max_steps")
        onset = incident.step if incident.onset_step is None else incident.onset_step
        if warmup is None:
            early = total is None or onset <= EARLY_SHARE * total
            return Evidence(weight=0.2) if early else None
        if total is None or total <= 0:
            return self._without_total(warmup, onset)
        share = warmup / total
        if share >= ENOUGH_SHARE:
            return Evidence(weight=0.3) if onset <= warmup else None
        if incident.name == "loss-plateau":
            return Evidence(weight=0.35, found=(f"warm-up was {share:.1%} of all steps",))
        if onset > max(EARLY_SHARE * total, 2 * warmup):
            return None
        return Evidence(
            weight=0.6 if warmup == 0 else 0.55,
            found=(f"began at step {onset:g}; warm-up was {warmup:g} of {total:g} steps, {share:.1%}",),
        )

    def _without_total(self, warmup: float, onset: float) -> Evidence | None:
        if onset > max(EARLY_STEPS, 2 * warmup):
            return None
        found = (f"began at step {onset:g} with {warmup:g} steps of warm-up",)
        return Evidence(weight=0.4, found=found) if warmup == 0 else Evidence(weight=0.3, found=found)
