"""The rule `completions-truncated`: most completions are cut off at the length limit."""

from __future__ import annotations

from collections.abc import Iterable
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
from ._run_health import onset, report

CUT = "completions/clipped_ratio"
LENGTH = "completions/mean_length"


@dataclass(frozen=True, kw_only=True)
class CompletionsTruncated(Detector):
    """Most completions run into the length limit and are cut off before they end.

    ## Why it matters
    An answer that is not given cannot be rewarded, so the reward says how short a completion is rather than how good.
    The model never learns to stop, and the time per step is that of the longest completion.

    ## What is normal
    Below 0.3. A model from scratch, or a base model without a chat template, starts higher and comes down.

    ## What to try
    1. A larger `max_completion_length`.
    2. Check that the end-of-text token of the tokenizer is the one the model writes.
    3. `mask_truncated_completions=True`, so that cut answers are not punished.
    4. A shorter thinking format, or a reward for ending.

    ## False alarms
    The mean over `window` observations must be above `share`, and not on its way down from a higher first level.

    ## References
    Yu et al. (2025), DAPO, arXiv 2503.14476, for the noise that punished cut answers bring; Axolotl, Training stability and
    debugging, for the limit.
    """

    window: int = 16
    """Observations that are averaged."""
    share: float = 0.8
    """Mean share of completions cut off that is too high."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_truncation"
    severity = Severity.WARNING
    reads = (CUT,)
    paced_by = CUT
    remedy = (
        rung(
            Alert(
                about="completions-truncated",
                advice="Raise max_completion_length (Axolotl: trl.max_completion_length), check the end-of-text token, or "
                "set mask_truncated_completions.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("nearly all", at_step=15, completions__clipped_ratio=[0.95] * 20, completions__mean_length=[127.0] * 20),
        fires("more and more", at_step=42, completions__clipped_ratio=[0.1] * 30 + [1.0] * 20),
        quiet("one in twenty", completions__clipped_ratio=[0.05] * 60),
        quiet(
            "learns to stop", completions__clipped_ratio=[0.97 - 0.01 * i for i in range(90)], options={"share": 0.85}
        ),
    )

    @cached_property
    def _course(self) -> Course:
        return Course(CUT, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The share of completions that were cut off."""
        return (self._course,)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the mean with the limit."""
        if now.get(CUT) is None:
            return None
        course = past.stat(self._course)
        comes_down = course.mean < course.first - max(0.05, 2.0 * course.change_error) or _falls(course.values)
        if not course.ready or course.mean < self.share or comes_down:
            return None
        length = past.latest(LENGTH)
        because = f"{course.mean:.0%} of the completions were cut off, on average over {self.window} observations" + (
            "" if length is None else f"; their mean length is {length:.4g} tokens"
        )
        bad = onset(past, CUT, lambda value: value >= self.share)
        return report(self, now, CUT, because, onset_step=bad, share=course.mean)


def _falls(values: Iterable[float]) -> bool:
    """Say whether the second half of a window is clearly below the first."""
    listed = list(values)
    half = len(listed) // 2
    return half > 0 and sum(listed[half:]) / (len(listed) - half) < sum(listed[:half]) / half - 0.05
