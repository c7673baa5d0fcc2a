"""The rule `loss-plateau`: the loss does not get better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Baseline, Statistic, Trend, TrendTracker

CHANCE_FACTS = ("vocab_size", "num_classes")
"""Facts that say among how many equally likely answers an untrained model guesses."""

MOST_GUESSED_CLASSES = 10
"""Where no such fact is known, a flat loss at the logarithm of up to this many classes is taken for chance."""

_LEVEL = Baseline("loss")


@dataclass(frozen=True, kw_only=True)
class LossPlateau(Detector):
    """The loss stays at the level of guessing, or where it began.

    ## Why it matters
    A loss at ln(number of classes) or ln(vocabulary size) after the warm-up means that the model's answers do not
    depend on its input: labels that are masked or shuffled, a learning rate that is far too low or too high, frozen or
    unconnected parameters. Waiting does not help.

    ## What to try
    1. Try to learn 20 records by heart: if even that fails, look at labels, loss and frozen parameters.
    2. If it succeeds, raise `learning_rate` 3 to 10 times, or train for longer.

    ## False alarms
    A run that has learned something and then levels off is not reported: that is how training ends. Fine-tuning that
    begins near its final loss may be: the warning then says that the loss has not moved since the start. Runs that report
    a reward, or margins between chosen and rejected answers, have rules of their own, which know more than the loss.

    ## References
    Karpathy (2019), A Recipe for Training Neural Networks: verify the loss at initialisation.
    """

    block: int = 4
    """Observations averaged into one point."""
    blocks: int = 12
    """Points in the window."""
    after_step: int = 200
    """Steps that are never judged; the warm-up, where known, is added."""
    tolerance: float = 0.02
    """Distance from chance, as a share of it, that still counts as chance."""
    learned: float = 0.03
    """Share of the first level by which the loss must have come down to have learned anything."""

    failure = FailureType.OTHER
    fine = "plateau"
    severity = Severity.WARNING
    metric = None
    paced_by = "loss"
    remedy = (Rung((Alert(),), success=0.1),)
    examples = (
        fires(
            "at ln(1000) after 200 steps",
            at_step=200,
            facts={"vocab_size": 1000},
            loss=[math.log(1000) + 0.01 * math.sin(i * i) for i in range(220)],
        ),
        fires("where it began", at_step=200, loss=[3.0 + 0.02 * math.sin(i * i) for i in range(220)]),
        quiet("a preference run has a rule of its own", loss=[math.log(2)] * 260, rewards__margins=[0.0] * 260),
        quiet("levels off after learning", loss=[1.0 + 2.0 * math.exp(-i / 50) for i in range(600)]),
        quiet("still falling, slowly", loss=[3.0 - 0.001 * i + 0.01 * math.sin(i * i) for i in range(600)]),
    )

    @cached_property
    def _trend(self) -> Trend:
        return Trend("loss", block=self.block, blocks=self.blocks)

    @property
    def looks_every(self) -> int:
        """Return the length of a block."""
        return self.block

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The slope of the loss and the largest level it ever had."""
        return (self._trend, _LEVEL)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look whenever a block has been completed after the warm-up."""
        warm_up = past.facts.get("warmup_steps", 0)
        first_judged = self.after_step + (int(warm_up) if isinstance(warm_up, (int, float)) else 0)
        if now.get("loss") is None or now.step < first_judged or _is_judged_by_others(past):
            return None
        trend, baseline = past.stat(self._trend), past.stat(_LEVEL)
        if not trend.ready or trend.filled or baseline.top <= 0.0 or trend.level <= 0.0:
            return None
        if trend.change < -self.learned * baseline.top:
            return None
        unmoved = trend.level > (1.0 - self.learned) * baseline.top
        choices = self._choices_at_chance(trend, past, guess=unmoved)
        if choices:
            because = (
                f"loss has been {trend.level:.4g} over {trend.span} observations, about ln({choices}): "
                f"as by guessing among {choices}"
            )
        elif unmoved and trend.slope >= -2.0 * trend.error:
            because = f"loss is {trend.level:.4g} after {now.step} steps and began at {baseline.top:.4g}"
        else:
            return None
        return self.incident(
            now, because, fine="plateau_at_chance" if choices else "plateau", onset_step=0, level=trend.level
        )

    def _choices_at_chance(self, trend: TrendTracker, past: History, *, guess: bool) -> int:
        """Return among how many answers a model with this loss would be guessing; 0 if the loss is not at chance."""
        known = [past.facts[name] for name in CHANCE_FACTS if name in past.facts]
        choices = [int(n) for n in known if isinstance(n, (int, float)) and n >= 2]
        if not choices and guess:
            choices = list(range(2, MOST_GUESSED_CLASSES + 1))
        nearest = min(choices, key=lambda n: abs(trend.level - math.log(n)), default=0)
        if not nearest:
            return 0
        chance = math.log(nearest)
        near = abs(trend.level - chance) <= max(3.0 * trend.level_error, self.tolerance * chance)
        return nearest if near else 0


def _is_judged_by_others(past: History) -> bool:
    return (
        past.latest("reward") is not None
        or past.latest("rewards/margins") is not None
        or past.latest("margin") is not None
    )
