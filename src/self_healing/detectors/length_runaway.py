"""The rule `length-runaway`: completions grow longer and longer, and the reward does not."""

from __future__ import annotations

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
from ._run_health import REWARD, REWARD_STD, above, has_improved, is_policy_run, onset, report

LENGTH = "completions/mean_length"
CUT = "completions/clipped_ratio"

WAS_RARE = 0.2
"""Share of cut completions below which a run began well."""


@dataclass(frozen=True, kw_only=True)
class LengthRunaway(Detector):
    """Completions have become several times as long, or run to the limit, and the reward has not risen with them.

    ## Why it matters
    Length is the cheapest way to please many reward functions, and a mean over the tokens of a completion makes long wrong
    answers cheap. Every step takes longer, until completions are cut off and nothing can be rewarded any more.

    ## What is normal
    What the task needs. Reasoning grows longer while the reward rises, and that is left alone here.

    ## What to try
    1. Read completions: repetition settles it.
    2. A penalty for length or repetition in the reward.
    3. `loss_type="dr_grpo"` or `"dapo"`, which do not favour long answers.
    4. A KL penalty (`beta`).
    5. A lower `learning_rate`.

    ## False alarms
    The mean over `window` observations must be `times` the first one, or the share of cut completions must have gone from
    below 0.2 to `cut`, while the reward is not clearly above its first level.

    ## References
    Liu et al. (2025), Understanding R1-Zero-like training, arXiv 2503.20783, for the bias of GRPO towards length; Singhal
    et al. (2023), A long way to go: length correlations in RLHF, arXiv 2310.03716.
    """

    window: int = 8
    """Observations that are averaged."""
    times: float = 3.0
    """Multiple of the first mean length that is too long."""
    cut: float = 0.5
    """Mean share of completions cut off that is too high in a run that began without."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_length_explosion"
    severity = Severity.WARNING
    reads = (LENGTH,)
    paced_by = LENGTH
    remedy = (
        rung(
            Alert(
                about="length-runaway",
                advice="Read some completions; penalise length or repetition in the reward, or use loss_type='dr_grpo' "
                "(TRL: GRPOConfig; Axolotl: trl.loss_type).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires(
            "ten times as long for the same reward",
            at_step=38,
            completions__mean_length=[150.0] * 30 + [100.0 * i for i in range(1, 31)],
            reward=[5.0, 6.0] * 30,
        ),
        fires(
            "to the limit",
            at_step=34,
            completions__mean_length=[300.0] * 30 + [500.0] * 20,
            completions__clipped_ratio=[0.02] * 30 + [0.8] * 20,
            reward=[5.0, 6.0] * 25,
        ),
        quiet(
            "longer, and better for it",
            completions__mean_length=[150.0 + 10 * i for i in range(100)],
            reward=[0.01 * i for i in range(100)],
        ),
        quiet("noise", completions__mean_length=[100.0, 180.0, 60.0] * 30, reward=[0.5] * 90),
    )

    @cached_property
    def _length(self) -> Course:
        return Course(LENGTH, window=self.window)

    @cached_property
    def _cut(self) -> Course:
        return Course(CUT, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The lengths, the share of cut completions, and what the reward does."""
        return (self._length, self._cut, REWARD, REWARD_STD)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the first one."""
        if now.get(LENGTH) is None or not is_policy_run(past):
            return None
        length, cut = past.stat(self._length), past.stat(self._cut)
        if not length.has_moved_on or not past.stat(REWARD).ready:
            return None
        is_long = length.mean > self.times * length.first
        is_cut = cut.has_moved_on and cut.first < WAS_RARE and cut.mean > self.cut and length.mean > length.first
        if not (is_long or is_cut) or has_improved(past):
            return None
        because = (
            f"completions are {length.mean:.4g} tokens long on average over {self.window} observations and began at "
            f"{length.first:.4g}"
        )
        because += f"; {cut.mean:.0%} are cut off" if cut.ready and cut.mean > 0.0 else ""
        half = 0.5 * (length.first + length.mean)
        bad = onset(past, LENGTH, above(half))
        return report(
            self,
            now,
            LENGTH,
            f"{because}; the reward has not risen",
            onset_step=bad,
            level=length.mean,
            first=length.first,
        )
