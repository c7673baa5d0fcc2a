"""The rule `dpo-at-chance`: a preference run has learned nothing after its warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..actions.alert import Alert
from ..actions.try_learning_rate import TryLearningRate
from ..core.action import Ladder, rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Statistic
from ._run_health import LN2, LOSS, MARGINS, SMALL_MARGIN, chance_level, is_after, report

ACCURACIES = "rewards/accuracies"
UNSOUND = 0.05
"""Share of the pairs that are alike, or contradict one another, from which on they are to blame and not the rate."""
ON_TRIAL: Ladder = (rung(TryLearningRate(), success=0.4, repeats=2),)
PAIRS_TO_BLAME: Ladder = (
    rung(
        Alert(
            about="dpo-at-chance: the pairs",
            advice="Leave out pairs that are alike or empty after tokenizing, raise max_length, and look which answer is "
            "which.",
        ),
        success=0.1,
    ),
)

_AT_LN2 = tuple(LN2 + 0.002 * math.sin(i * i) for i in range(260))
_NO_MARGIN = tuple(0.003 * math.sin(i * i) for i in range(260))


@dataclass(frozen=True, kw_only=True)
class DpoAtChance(Detector):
    """The loss of a preference run is that of guessing and its margins are zero, long after the warm-up.

    ## Why it matters
    The policy still is its reference: chosen and rejected answers are as likely as before. The rate is far too low, `beta`
    is tiny, the pairs do not differ (identical, empty, cut to the same prefix) or contradict one another.

    ## What is normal
    A first loss of exactly 0.6931 (ln 2; KTO: 0.5) with margins of 0, since policy and reference are the same, and little
    change while the rate warms up. 100 steps later margins are 0.1 and more.

    ## What to try
    1. Look at pairs: are they different, after truncation to `max_length`?
    2. If `rewards/accuracies` is well above 0.5 although the margins are zero, the direction is right and the
       `learning_rate` too low: 2 to 5 times as much.
    3. If it is at 0.5, the pairs contradict one another or are alike.
    4. `beta` of 0.1 to 0.5.

    ## What is done
    The pairs are read first, a sample of them. Only where they are sound is it an error, and the rate is doubled on trial:
    kept if the margins leave zero within the window, raised once more to five times the schedule's if not, and put back
    if that was in vain too. Pairs of no use are named with their share instead, and nothing is changed.

    ## False alarms
    Never before `after_step` and the warm-up. Loss and margins must both be at chance, each as a mean over 32
    observations: the margins of ORPO and CPO start near zero and may stay there, so these are left alone, and so is a loss
    at ln 2 with margins that are not zero. Margins that grow by next to nothing are at chance as well, and called slow.

    ## References
    Rafailov et al. (2023), Direct preference optimization, arXiv 2305.18290; Ethayarajh et al. (2024), KTO, arXiv
    2402.01306.
    """

    after_step: int = 200
    """Steps that are never judged; the warm-up, where known, is added."""

    failure = FailureType.DPO_PLATEAU
    fine = "plateau_at_chance"
    severity = Severity.WARNING
    reads = ("rewards/margins",)
    paced_by = "rewards/margins"
    remedy = (
        rung(
            Alert(
                about="dpo-at-chance",
                advice="Check that the pairs differ after truncation (max_length), then raise the learning_rate 2 to 5 "
                "times; check beta (Axolotl: rl_beta).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("at ln 2 after 200 steps", at_step=200, loss=_AT_LN2, rewards__margins=_NO_MARGIN),
        fires(
            "a warm-up of 50 steps is waited for",
            at_step=250,
            facts={"warmup_steps": 50},
            loss=_AT_LN2,
            rewards__margins=_NO_MARGIN,
        ),
        fires("of a KTO run", at_step=200, loss=[0.5] * 260, rewards__margins=_NO_MARGIN, kl=[0.01] * 260),
        quiet("the first steps", loss=_AT_LN2[:190], rewards__margins=_NO_MARGIN[:190]),
        quiet(
            "learns",
            loss=[LN2 * math.exp(-i / 400) for i in range(400)],
            rewards__margins=[0.004 * i for i in range(400)],
        ),
        quiet("at ln 2 with margins", loss=_AT_LN2, rewards__margins=[0.4] * 260),
        quiet("ORPO", loss=[1.2] * 260, rewards__margins=[0.002] * 260, nll_loss=[1.1] * 260),
    )

    def ladder(self, incident: Incident) -> Ladder:
        """Change the rate only where the pairs were found to be sound."""
        if incident.severity is Severity.ERROR:
            return ON_TRIAL
        return PAIRS_TO_BLAME if incident.stage else self.remedy

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The means of loss and margins."""
        return (LOSS, MARGINS)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare loss and margins with chance."""
        if now.get("rewards/margins") is None or not is_after(now, past, self.after_step):
            return None
        level = chance_level(past)
        if level is None:
            return None
        loss, margins = past.stat(LOSS), past.stat(MARGINS)
        accuracies = past.last(ACCURACIES, len(margins.values))
        because = f"the loss is {loss.mean:.4g} after {now.step} steps (guessing: {level:.4g}) and the margins are {margins.mean:.2g}"
        if accuracies:
            because += f"; the chosen answer is preferred in {math.fsum(accuracies) / len(accuracies):.0%} of the pairs"
        crawls = margins.mean > 3.0 * margins.error and margins.mean - margins.first > 2.0 * margins.change_error
        if crawls:
            because += "; the margins do grow, far too slowly"
        fine = "dpo_slow" if crawls else "plateau_at_chance"
        pairs = _pairs(past)
        severity = Severity.ERROR if pairs is not None and not pairs else Severity.WARNING
        found = report(
            self, now, "rewards/margins", because + (f"; {pairs}" if pairs else ""), severity=severity, fine=fine,
            onset_step=0, loss=loss.mean, margin=margins.mean,
        )  # fmt: skip
        return replace(found, stage=1 if pairs else 0, excess=max(0.0, SMALL_MARGIN - margins.mean))


def _pairs(past: History) -> str | None:
    """Say what is wrong with the pairs; nothing where they are sound, and None where nobody has looked."""
    alike, swapped = past.facts.get("pairs_alike"), past.facts.get("pairs_swapped", 0.0)
    if not isinstance(alike, float) or not isinstance(swapped, float):
        return None
    told = [f"{alike:.0%} of the pairs are alike"] if alike >= UNSOUND else []
    told += [f"{swapped:.0%} contradict another one"] if swapped >= UNSOUND else []
    return " and ".join(told)
