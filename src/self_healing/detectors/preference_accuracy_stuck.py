"""The rule `preference-accuracy-stuck`: chosen answers are preferred no more often than by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Course, Statistic
from ._run_health import LOSS, MARGINS, chance_level, is_after, report

ACCURACIES, OF_REWARD_MODEL = "rewards/accuracies", "accuracy"

_COIN = tuple(0.5 + 0.1 * math.sin(i * i) for i in range(260))


@dataclass(frozen=True, kw_only=True)
class PreferenceAccuracyStuck(Detector):
    """A preference run or a reward model tells chosen from rejected answers no better than a coin.

    ## Why it matters
    The pairs teach nothing: labels are random or swapped, both answers are cut to the same text, or what tells them apart
    is not in the input. A reward model at chance gives a policy noise to follow.

    ## What is normal
    0.5 at the start; 0.6 to 0.8 after some hundred steps on pairs that people have judged. Close to 1.0 early on means
    pairs that a triviality tells apart.

    ## What to try
    1. Read ten pairs as the trainer sees them, after the chat template and truncation.
    2. Below 0.45: look for swapped columns.
    3. A `max_length` that reaches to where the answers differ.
    4. A higher `learning_rate`; for a reward model 1e-5, and a score head that is trained
       (`modules_to_save=["score"]` with LoRA).

    ## False alarms
    Never before `after_step` and the warm-up. The mean over `window` observations must be at most `below`, the best mean so
    far too, and there must be no visible rise. A DPO or KTO run whose loss and margins are at chance as well is left to
    `dpo-at-chance`.

    ## References
    Ouyang et al. (2022), Training language models to follow instructions with human feedback, arXiv 2203.02155, for the
    accuracies people's judgements allow.
    """

    window: int = 32
    """Observations that are averaged."""
    below: float = 0.55
    """Mean accuracy that is no better than chance."""
    after_step: int = 200
    """Steps that are never judged; the warm-up, where known, is added."""

    failure = FailureType.DPO_PLATEAU
    fine = "plateau_at_chance"
    severity = Severity.WARNING
    reads = (ACCURACIES, OF_REWARD_MODEL)
    paced_by = ACCURACIES
    remedy = (
        rung(
            Alert(
                about="preference-accuracy-stuck",
                advice="Read ten pairs as the trainer sees them: swapped, identical, or cut to the same text (max_length)?",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("a coin", at_step=200, rewards__accuracies=_COIN, rewards__margins=[0.3] * 260),
        fires("a reward model", at_step=200, accuracy=_COIN, margin=[0.0] * 260),
        quiet("learns", rewards__accuracies=[0.5 + 0.001 * i + 0.1 * math.sin(i * i) for i in range(260)]),
        quiet("the accuracy of a classifier", accuracy=_COIN),
        quiet(
            "at chance altogether", loss=[math.log(2)] * 260, rewards__margins=[0.0] * 260, rewards__accuracies=_COIN
        ),
    )

    @cached_property
    def _courses(self) -> tuple[Course, ...]:
        return tuple(Course(name, window=self.window) for name in self.reads)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The accuracies, and whether loss and margins are at chance."""
        return (*self._courses, LOSS, MARGINS)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the mean accuracy with chance."""
        for declared in self._courses:
            if now.get(declared.metric) is not None:
                break
        else:
            return None
        is_reward_model = declared.metric == OF_REWARD_MODEL
        if (is_reward_model and past.latest("margin") is None) or not is_after(now, past, self.after_step):
            return None
        course = past.stat(declared)
        if not course.ready or course.mean > self.below or course.highest > self.below + 2.0 * course.error:
            return None
        if course.mean - course.first > 2.0 * course.change_error or chance_level(past) is not None:
            return None
        is_swapped = course.mean + 4.0 * course.error < 0.5
        return report(
            self, now, declared.metric,
            f"chosen answers are preferred in {course.mean:.0%} of the pairs after {now.step} steps"
            + ("; less often than by chance: are the columns swapped?" if is_swapped else ""),
            onset_step=0, accuracy=course.mean,
        )  # fmt: skip
