"""The rule `dead-run`: the first steps destroyed the model, and it does not come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Beginning, Statistic

SMALLEST_VOCABULARY = 32
"""Among fewer words than this, chance alone makes the loss of one small batch that of a model that knows something."""

TRAINED = 0.5
"""A first loss below this share of guessing is that of a model that knows something already."""

OTHER_UNIT = 1.5
"""A first loss above this multiple of guessing is no mean over tokens: what is too high is not known."""

KAPPA = 0.05
"""Excess over the limit, in logarithms, that every observation is forgiven: batches differ."""

FAR, FAR_NATS = 3.0, 3.0
"""Where guessing has no known loss: multiple of the first loss, and distance from it, that are worth a warning."""

_FALLING = tuple(4.2 - 0.03 * i + 0.05 * math.sin(i * i) for i in range(40))


@dataclass(frozen=True, kw_only=True)
class DeadRun(Detector):
    """The loss went up in the first steps, to worse than guessing, and stays there.

    ## Why it matters
    A learning rate that is a hundred times too high destroys the model within a few updates. What follows may look like
    training, the loss even falls, but from far above where it began and to the level of guessing. Nothing learned later
    makes up for it: the run goes back to its first state and starts again with a tenth of the rate.

    ## What to try
    1. Go back to a checkpoint from before the loss rose; nothing after it is of use.
    2. Start with a `learning_rate` 3 to 10 times lower and a longer `warmup_ratio`.
    3. Clip gradients (`max_grad_norm=1.0`).

    ## False alarms
    Only the first `window` losses are judged, and only those of a run seen from its first step. A loss that goes up for
    good after `within` observations is a divergence, whose cause may be another one. A model that knew something must be
    half-way to guessing, ln(vocabulary size), for `persist` losses in a row. An untrained one must be above guessing and
    above its first loss for as long, and by `excess` altogether (summed logarithms, 0.05 a loss forgiven). A lucky first
    batch reaches neither. None in the recorded healthy runs, taken from every one of their steps as if it were the first,
    and none in real tiny trainings (`bench/dead_runs.py`). Where the vocabulary is not known or has less than 32 words, or
    the loss is not a mean over tokens, a loss that stays at three times the first one is a warning. An untrained model
    that ends at the level of guessing is left to `loss-plateau`: a slow warm-up looks the same.

    ## References
    Wortsman et al. (2023), Small-scale proxies for large-scale Transformer training instabilities, arXiv 2309.14322,
    for the narrow range of rates between those that are best and those that diverge.
    """

    window: int = 32
    """Losses from the start of the run that are judged."""
    within: int = 8
    """Losses from the start of the run after which a rise is no longer that of its first steps, but a divergence."""
    persist: int = 8
    """Losses in a row that must be too high."""
    excess: float = 1.5
    """Sum over these losses of the logarithm of how many times too high each is."""

    failure = FailureType.DIVERGENCE
    fine = "dead_run"
    severity = Severity.ERROR
    metric = "loss"
    remedy = (
        rung(
            RollBack(depth=2, before_step=1, min_steps=0),
            ScaleLearningRate(factor=0.1, floor=0.0, lasting=True),
            success=0.6,
            repeats=4,
        ),
        rung(StopRun()),
    )
    examples = (
        fires(
            "from scratch at a hundred times the rate that works",
            at_step=8,
            severity=Severity.ERROR,
            facts={"vocab_size": 64},
            loss=[4.19, 7.1, 7.49, 6.92, 5.7, 5.0, 5.56, 4.92, 5.43, 5.47, 5.3, 5.18, 4.68],
        ),
        fires(
            "a trained model ends as one that guesses",
            at_step=8,
            severity=Severity.ERROR,
            facts={"vocab_size": 32000},
            loss=[1.637, 11.807, 11.605, 10.383, 10.373, 10.373, 10.373, 10.373, 10.373, 10.373],
        ),
        fires(
            "without the size of the vocabulary it is a warning",
            at_step=8,
            severity=Severity.WARNING,
            loss=[1.637, 11.807, 11.605, 10.383, 10.373, 10.373, 10.373, 10.373, 10.373, 10.373],
        ),
        quiet("learning", facts={"vocab_size": 64}, loss=_FALLING),
        quiet("a bump that passes", facts={"vocab_size": 64}, loss=(4.2, 5.5, 6.1, 5.0, 4.6, 4.3, *_FALLING)),
        quiet("a slow start, a little above guessing", facts={"vocab_size": 64}, loss=[4.15] + [4.25] * 40),
        quiet(
            "batches of one record, the first an easy one",
            facts={"vocab_size": 32000},
            loss=[2.2, 7.0, 7.9, 4.4, 5.7, 5.3, 3.5, 5.7, 5.8, 4.1, 5.5, 7.0, 4.0, 7.5, 6.9, 5.8, 8.1, 5.5, 4.3],
        ),
        quiet("the surrogate loss of a run with rewards", facts={"vocab_size": 64}, reward=[0.1] * 20,
              loss=[0.1] + [9.0] * 19),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse a window that is over before anything can persist in it."""
        super().__post_init__()
        if self.window <= self.persist:
            self.refuse("window", f"must be greater than persist = {self.persist}")

    @cached_property
    def _beginning(self) -> Beginning:
        return Beginning("loss", length=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The first losses, held back or not."""
        return (self._beginning,)

    def ladder(self, incident: Incident) -> Ladder:
        """A warning is only told."""
        return self.remedy if incident.severity is Severity.ERROR else (rung(Alert(), success=0.1),)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest losses with the first one and with guessing."""
        loss, begun = now.get("loss"), past.stat(self._beginning)
        if loss is None or not math.isfinite(loss) or begun.is_over or begun.count <= self.persist:
            return None
        losses = tuple(begun.values)
        if losses[0] <= 0.0 or past.latest("reward") is not None or not _is_seen_from_its_start(past, len(losses)):
            return None
        guessing = _loss_of_guessing(past)
        if guessing is None or losses[0] > OTHER_UNIT * guessing:
            return self._far_from_the_first(now, losses)
        if losses[0] < TRAINED * guessing:
            return self._forgotten(now, losses, guessing)
        return self._worse_than_guessing(now, losses, guessing)

    def _worse_than_guessing(self, now: Signal, losses: Sequence[float], guessing: float) -> Incident | None:
        limit = max(losses[0], guessing)
        high = self._high_from_the_start(losses, limit)
        excess = math.fsum(math.log(x / limit) - KAPPA for x in high)
        if len(high) < self.persist or excess < self.excess:
            return None
        because = (
            f"loss has been above its first value of {losses[0]:.3g} and above guessing ({guessing:.3g}) for "
            f"{len(high)} observations, about {math.exp(math.fsum(map(math.log, high)) / len(high)):.3g}"
        )
        return self._report(now, losses, because)

    def _forgotten(self, now: Signal, losses: Sequence[float], guessing: float) -> Incident | None:
        high = self._high_from_the_start(losses, 0.5 * (losses[0] + guessing))
        if len(high) < self.persist:
            return None
        because = (
            f"loss began at {losses[0]:.3g} and has been at least {min(high):.3g} for {len(high)} observations; "
            f"guessing has {guessing:.3g}"
        )
        return self._report(now, losses, because)

    def _far_from_the_first(self, now: Signal, losses: Sequence[float]) -> Incident | None:
        high = self._high_from_the_start(losses, max(FAR * losses[0], losses[0] + FAR_NATS))
        if len(high) < self.persist:
            return None
        because = f"loss began at {losses[0]:.3g} and has been at least {min(high):.3g} for {len(high)} observations"
        return self._report(now, losses, because, severity=Severity.WARNING)

    def _high_from_the_start(self, losses: Sequence[float], limit: float) -> list[float]:
        """Return the newest losses as far back as all are above a limit; none where they were lower for long before."""
        high: list[float] = []
        for loss in reversed(losses[1:]):
            if loss <= limit:
                break
            high.append(loss)
        return high if len(losses) - len(high) <= self.within else []

    def _report(
        self, now: Signal, losses: Sequence[float], because: str, severity: Severity = Severity.ERROR
    ) -> Incident:
        excess = losses[-1] - losses[0]
        return self.incident(now, because, severity=severity, excess=excess, onset_step=1, first=losses[0])


def _loss_of_guessing(past: History) -> float | None:
    size = past.facts.get("vocab_size")
    return math.log(size) if isinstance(size, (int, float)) and SMALLEST_VOCABULARY <= size < math.inf else None


def _is_seen_from_its_start(past: History, count: int) -> bool:
    """Say whether the first loss is that of the first steps, and not of a run that was resumed."""
    first, second = past.step_ago("loss", count - 1), past.step_ago("loss", count - 2)
    return first is not None and second is not None and first <= max(1, second - first)
