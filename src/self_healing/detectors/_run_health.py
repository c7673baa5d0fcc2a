"""What the rules for RL and preference runs share: where a metric began and is now, and what the reward does meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..core.detector import Detector
from ..core.failure import Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Course, CourseTracker

LN2 = math.log(2.0)

REWARD = Course("reward")
"""What the reward does, for rules about something else; many read it, so all read the same window."""
REWARD_STD = Course("reward_std")
IDLE = Course("frac_reward_zero_std")
"""Share of the groups whose completions all got the same reward."""
MARGINS = Course("rewards/margins", window=32)
LOSS = Course("loss", window=32)

CLEAR = 2.0
"""Standard errors from which a change of the reward is taken for one."""
WORTH_IT = 0.2
"""Share of the rewards' spread within a group that a change must have to be worth a word."""
FALLEN = 4.0
"""Standard errors below its best level from which the reward is taken to have fallen: the best of many is a lucky one."""
SMALL_MARGIN = 0.02
"""A mean margin, in units of the implicit reward, that is as good as none."""
NEAR = 0.02
"""Distance from chance, as a share of it, that still counts as chance."""


def reported(now: Signal, courses: Iterable[Course], past: History) -> tuple[str, CourseTracker] | None:
    """Return the first of several spellings that this observation carries, with its course; None where it has none."""
    for course in courses:
        if now.get(course.metric) is not None:
            return course.metric, past.stat(course)
    return None


def is_policy_run(past: History) -> bool:
    """Say whether the run learns from a reward: supervised trainers log an entropy too."""
    return past.latest("reward") is not None


def is_after(now: Signal, past: History, after_step: int) -> bool:
    """Say whether a step lies behind the warm-up, where known, and so many steps more."""
    warm_up = past.facts.get("warmup_steps", 0)
    return now.step >= after_step + (int(warm_up) if isinstance(warm_up, (int, float)) else 0)


def has_improved(past: History) -> bool:
    """Say whether the reward is clearly higher than in the beginning."""
    reward = past.stat(REWARD)
    if not reward.has_moved_on:
        return False
    gain = reward.mean - reward.first
    return gain > CLEAR * reward.change_error and gain > WORTH_IT * past.stat(REWARD_STD).mean


def has_fallen(past: History) -> bool:
    """Say whether the reward is clearly below the best it has been, by a good part of what had been gained."""
    reward = past.stat(REWARD)
    if not reward.has_moved_on:
        return False
    lost, gained = reward.highest - reward.mean, reward.highest - reward.first
    return lost > FALLEN * reward.change_error and lost > 0.5 * gained and lost > 0.1 * abs(reward.highest)


def has_odds(past: History) -> bool:
    """Say whether the preference is learned beside the likelihood (ORPO, CPO), where margins start small and stay so."""
    return any(past.latest(name) is not None for name in ("nll_loss", "log_odds_chosen", "odds_ratio_loss"))


def chance_level(past: History) -> float | None:
    """Return the loss of a preference run that has learned nothing, where its loss and margins are there; else None.

    That is ln 2 for DPO and 0.5 for KTO; of other losses, only that they are where they began is known.
    """
    loss, margins = past.stat(LOSS), past.stat(MARGINS)
    if not loss.ready or not margins.ready or abs(margins.mean) >= SMALL_MARGIN or has_odds(past):
        return None
    levels = (LN2, 0.5, *((loss.first,) if loss.has_moved_on else ()))
    return next((level for level in levels if abs(loss.mean - level) <= NEAR * abs(level)), None)


def above(limit: float) -> Callable[[float], bool]:
    """Return what says whether a value is above a limit."""
    return lambda value: value > limit


def below(limit: float) -> Callable[[float], bool]:
    """Return what says whether a value is below a limit."""
    return lambda value: value < limit


def onset(past: History, metric: str, is_bad: Callable[[float], bool]) -> int | None:
    """Return the step from which on every value has been bad."""
    count = 0
    for value in reversed(past.last(metric)):
        if not is_bad(value):
            break
        count += 1
    return past.step_ago(metric, count)


def report(
    rule: Detector,
    now: Signal,
    metric: str,
    because: str,
    *,
    severity: Severity | None = None,
    fine: str | None = None,
    onset_step: int | None = None,
    **numbers: float,
) -> Incident:
    """Build a rule's incident, which ages by the observations of the metric it is about."""
    found = rule.incident(now, because, severity=severity, fine=fine, onset_step=onset_step)
    return replace(found, paced_by=metric, numbers=numbers)
