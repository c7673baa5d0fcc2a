"""The rule `reward-no-signal`: completions of a group all get the same reward."""

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
from ..core.statistics import Course, CourseTracker, Statistic
from ._run_health import REWARD, REWARD_STD, has_fallen, has_improved, report

GROWN = 1.5
"""Times the share of the beginning from which a signal dries up."""

_HALF = tuple(0.5 + 0.2 * math.sin(i * i) for i in range(60))


@dataclass(frozen=True, kw_only=True)
class RewardNoSignal(Detector):
    """In most groups every completion gets the same reward, so there is next to nothing to learn from.

    ## Why it matters
    The advantage of a completion is its reward minus the mean of its group. Where all rewards of a group are equal its
    gradient is zero: at `frac_reward_zero_std` 1.0 nothing is learned at all, and at 0.9 nine tenths of the compute are
    spent for nothing.

    ## What is normal
    Below 0.8; with rewards of 0 or 1 and few generations often 0.3 to 0.7. It grows as a task is being solved: where the
    reward is at its best and well above its beginning this is only noted.

    ## What to try
    1. Prompts between too easy and too hard for this model.
    2. More `num_generations`, a higher `temperature`.
    3. A reward with more than two values.
    4. If the reward has fallen too, look at `completions/clipped_ratio` and `entropy`.

    ## False alarms
    The limit holds for a mean over `window` observations. A smaller share (`dried`) is reported only if it is 1.5
    times that of the beginning while the reward has not risen. Rewards that are all zero are left to `reward-flat`.

    ## References
    Yu et al. (2025), DAPO, arXiv 2503.14476, for groups without a signal and sampling around them; Axolotl, Training
    stability and debugging, for the limit.
    """

    window: int = 16
    """Observations the share is averaged over."""
    share: float = 0.8
    """Mean share of groups without a signal that is too high."""
    dried: float = 0.6
    """Mean share that is too high where it has grown by half and the reward has not risen."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_zero_signal"
    severity = Severity.WARNING
    reads = ("reward",)
    paced_by = "reward"
    remedy = (
        rung(
            Alert(
                about="reward-no-signal",
                advice="Choose prompts the model solves sometimes, raise num_generations and temperature "
                "(TRL: GRPOConfig; Axolotl: trl.num_generations, trl.temperature), or give partial rewards.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("no group differs", at_step=15, reward=[0.5] * 20, frac_reward_zero_std=[1.0] * 20),
        fires("only the spread is logged", at_step=15, reward=[0.5] * 20, reward_std=[0.0] * 20),
        fires(
            "the signal dries up and the reward does not rise",
            at_step=51,
            reward=[0.3 + 0.1 * x for x in _HALF],
            frac_reward_zero_std=[0.1] * 40 + [0.8] * 20,
        ),
        quiet("half of the groups", reward=[0.3 + 0.005 * i for i in range(60)], frac_reward_zero_std=_HALF),
        quiet("a quarter of the steps has no spread", reward=[0.4] * 60, reward_std=[0.0, 0.4, 0.5, 0.6] * 15),
        quiet("no reward at all is another rule's", reward=[0.0] * 40, frac_reward_zero_std=[1.0] * 40),
    )

    @cached_property
    def _idle(self) -> Course:
        return Course("frac_reward_zero_std", window=self.window)

    @cached_property
    def _std(self) -> Course:
        return Course("reward_std", window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The share of groups without a signal, the spread, and what the reward does."""
        return (self._idle, self._std, REWARD, REWARD_STD)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Judge the share of idle groups; where it is not logged, a spread of zero."""
        if now.get("reward") is None or not any(past.stat(REWARD).values):
            return None
        if now.get("frac_reward_zero_std") is not None:
            return self._by_share(now, past, past.stat(self._idle))
        std = past.stat(self._std)
        if now.get("reward_std") is None or not std.ready or any(std.values):
            return None
        because = (
            f"rewards did not differ within any group of the last {len(std.values)} observations (reward_std is 0)"
        )
        return self._told(now, past, "reward_std", because, 1.0)

    def _by_share(self, now: Signal, past: History, idle: CourseTracker) -> Incident | None:
        if not idle.ready:
            return None
        because = f"in {idle.mean:.0%} of the groups every completion got the same reward (mean of {len(idle.values)} observations)"
        if idle.mean >= self.share:
            return self._told(now, past, "frac_reward_zero_std", because, idle.mean)
        has_dried = idle.mean >= self.dried and idle.mean >= GROWN * idle.first and idle.has_moved_on
        if not has_dried or has_improved(past):
            return None
        because += f", {idle.first:.0%} at the beginning, and the reward has not risen"
        return self._told(now, past, "frac_reward_zero_std", because, idle.mean)

    def _told(self, now: Signal, past: History, metric: str, because: str, share: float) -> Incident:
        """Report it; as a note only where the task is being solved."""
        is_solved = has_improved(past) and not has_fallen(past)
        if is_solved:
            because += "; the reward is well above its beginning: these prompts have little left to teach"
        severity = Severity.INFO if is_solved else Severity.WARNING
        onset_step = past.step_ago(metric, self.window - 1)
        return report(self, now, metric, because, severity=severity, onset_step=onset_step, share=share)
