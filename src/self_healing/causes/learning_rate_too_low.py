"""The cause `learning-rate-too-low`."""

from __future__ import annotations

from ..actions.alert import Alert
from ..actions.scale_learning_rate import ScaleLearningRate
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, number, usual_rates

ACCURACIES = 32
PREFERRED = 0.6


class LearningRateTooLow(Cause):
    """The learning rate is too low for the loss to move.

    The loss stops falling early and far above where it should end, while gradients are healthy: the steps are
    simply too small. A rate of exactly zero long before the end is the extreme case.
    """

    explains = ("loss-plateau", "learning-rate-unexpected", "dpo-at-chance", "reward-flat")
    confirm = (
        "Raise the rate 3 times for a few hundred steps of a copy of the run: a loss that starts to fall settles it."
    )
    fixes = (
        "Raise the learning rate 2 to 5 times.",
        "Start from a usual rate: 1e-5 to 5e-5 for full fine-tuning, 1e-4 to 3e-4 for LoRA.",
    )
    remedy = (rung(Alert(), success=0.2), rung(ScaleLearningRate(factor=2.0), success=0.4))
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def ladder(self, incident: Incident) -> Ladder:
        """Leave RL and preference runs to their rules: whether the pairs or the rewards are to blame comes first."""
        return () if incident.name in ("dpo-at-chance", "reward-flat") else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Compare the highest recent rate with usual ones; the newest alone may be the end of a schedule."""
        if incident.name == "dpo-at-chance" and (told := self._right_direction(past)) is not None:
            return told
        rate = finite_latest(past, "learning_rate")
        if rate is None:
            return Evidence(weight=0.25)
        max_steps = number(past, "max_steps")
        if rate == 0 and incident.step > 0 and (max_steps is None or incident.step < 0.9 * max_steps):
            return Evidence(weight=0.6, found=(f"the learning rate is 0 at step {incident.step}",))
        peak = max([rate, *past.last("learning_rate")])
        rates = usual_rates(past)
        if rates is None:
            return Evidence(weight=0.25)
        if peak > rates[1]:
            return None
        if peak >= rates[0]:
            return Evidence(weight=0.2)
        weight = 0.65 if peak <= rates[0] / 5 else 0.5
        return Evidence(
            weight=weight,
            found=(f"the learning rate was at most {peak:.3g}; {rates[0]:.0e} to {rates[1]:.0e} is usual here",),
        )

    def _right_direction(self, past: History) -> Evidence | None:
        """Say what it means that chosen answers are preferred by a margin of nothing: right steps, too small."""
        accuracies = past.last("rewards/accuracies", ACCURACIES)
        mean = sum(accuracies) / len(accuracies) if accuracies else 0.0
        if mean <= PREFERRED:
            return None
        return Evidence(
            weight=0.65, found=(f"chosen answers are preferred in {mean:.0%} of the pairs, by margins of nearly zero",)
        )
