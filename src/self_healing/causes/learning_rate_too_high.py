"""The cause `learning-rate-too-high`."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, growth, jump_within_a_step, usual_rates

SUSPECTED = 0.45
"""What is left of it where a jump is more than one update at that rate can do: possible, and not acted on."""


class LearningRateTooHigh(Cause):
    """The learning rate is higher than this model and data can take.

    Steps overshoot: losses jump to a multiple and fall back at first, gradient norms creep up, and at some point
    the run no longer returns. It takes several steps: a loss of twenty times the usual from one step to the next, out of
    calm, is rather a batch. Typical rates are 1e-5 to 5e-5 for full fine-tuning and 1e-4 to 3e-4 for LoRA.
    """

    explains = (
        "loss-spike", "loss-divergence", "loss-not-finite", "gradient-not-finite", "gradient-explosion",
        "gradient-norm-growth", "learning-rate-unexpected", "dead-run", "entropy-collapse", "kl-runaway", "entropy-runaway",
        "policy-steps-too-large", "reward-collapse", "length-collapse", "value-loss-growing", "preference-margin-collapse",
        "preference-likelihood-falling", "preference-nll-rising", "odds-ratio-falling", "ebft-off-course",
    )  # fmt: skip
    confirm = (
        "Train a few hundred steps from the last good state at a third of the rate: if the trouble stays away and "
        "returns with the old rate, it was the rate."
    )
    fixes = (
        "Lower the learning rate 2 to 5 times, or warm up for longer.",
        "Start from a usual rate: 1e-5 to 5e-5 for full fine-tuning, 1e-4 to 3e-4 for LoRA.",
    )
    remedy = (
        rung(RollBack(), RewarmLearningRate(), success=0.6),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.6),
        rung(RollBack(depth=1), ScaleLearningRate(), TightenClipping(), success=0.4),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def ladder(self, incident: Incident) -> Ladder:
        """Leave to their rules what these have an order for: one change at a time, and a dead run begins again."""
        return () if incident.name in ("dead-run", "kl-runaway", "entropy-collapse") else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Compare the rate with usual ones, and look for norms that grew and a rate that was climbing."""
        rate = finite_latest(past, "learning_rate")
        if rate is None:
            return Evidence(weight=0.25)
        rates = usual_rates(past)
        climbing = self._climbing(past, rate)
        if rate <= 0 or (rates is not None and rate < rates[0] and not climbing):
            return None
        weight, found = 0.3, []
        if rates is not None and rate > rates[1]:
            weight = 0.75 if rate >= 5 * rates[1] else 0.6 if rate >= 2 * rates[1] else 0.5
            found.append(f"the learning rate is {rate:.3g}; {rates[0]:.0e} to {rates[1]:.0e} is usual here")
        grown = growth(past.before(incident, "grad_norm", 32))
        if grown >= 2:
            weight = max(weight + 0.1, 0.5)
            found.append(f"gradient norms had grown {grown:.1f} times before")
        if incident.name == "dead-run":
            weight = max(weight, 0.6)
            found.append(f"the first steps, at a rate of {rate:.3g}, made the loss worse and it stayed so")
        if climbing:
            weight = max(weight, 0.45)
            found.append(f"the learning rate was still climbing, to {rate:.3g}")
        jump = jump_within_a_step(incident, past) if incident.name in ("loss-spike", "gradient-explosion") else 0.0
        if jump and self._was_borne(past, rate):
            weight = min(weight, SUSPECTED)
            found.append(f"against it: {jump:.0f} times the usual loss in one step, after calm ones at this rate")
        return Evidence(weight=min(weight, 0.9), found=tuple(found))

    def _was_borne(self, past: History, rate: float) -> bool:
        before = past.last("learning_rate", 8)
        return len(before) == 8 and min(before) >= 0.9 * rate

    def _climbing(self, past: History, rate: float) -> bool:
        before = past.last("learning_rate", 8)
        return len(before) > 1 and rate > before[0] and before[-1] > before[0]
