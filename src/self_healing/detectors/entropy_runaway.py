"""The rule `entropy-runaway`: the policy becomes ever more random."""

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
from ._run_health import REWARD, REWARD_STD, above, has_improved, is_policy_run, onset, report, reported


@dataclass(frozen=True, kw_only=True)
class EntropyRunaway(Detector):
    """The entropy of the policy is high and far above where it began, and the reward has not gained by it.

    ## Why it matters
    The policy is on its way to writing anything: updates push probability away from what was sampled and give it to
    nothing in particular. Text becomes incoherent before the reward shows it.

    ## What is normal
    A slow fall. Above 1.0 a run is usually not converging, but what matters is the direction: there are runs that stay at
    1.3 from beginning to end, and small vocabularies or high temperatures begin at 2 and more.

    ## What to try
    1. A lower `learning_rate`.
    2. A KL penalty (`beta`), which holds the policy to fluent text.
    3. A smaller `entropy_coef`, where one is set.
    4. A lower `temperature`.
    5. Read completions.

    ## False alarms
    The mean must be above `above` and `times` the lowest mean the run has had, which began lower than that, and the reward
    must not have risen. It only warns.

    ## References
    Axolotl, Training stability and debugging, for the limit of 1.0.
    """

    window: int = 16
    """Observations that are averaged."""
    above: float = 1.0
    """Mean entropy per token, in nats, that is high."""
    times: float = 2.0
    """Multiple of the first and of the lowest mean that it must also be."""

    failure = FailureType.RL_COLLAPSE
    fine = "unstable"
    severity = Severity.WARNING
    reads = ("entropy", "policy/entropy_avg")
    paced_by = "entropy"
    remedy = (
        rung(
            Alert(
                about="entropy-runaway",
                advice="Lower the learning_rate, add a KL penalty (TRL: beta; Axolotl: trl.beta), and lower entropy_coef "
                "and temperature where they were raised.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("from 0.4 to 2.0", at_step=46, entropy=[0.4] * 40 + [2.0] * 40, reward=[0.3] * 80),
        quiet("high from beginning to end", entropy=[1.3] * 100, reward=[0.3] * 100),
        quiet("doubles, to what is usual elsewhere", entropy=[0.2] * 40 + [0.5] * 40, reward=[0.3] * 80),
        quiet(
            "explores, and finds", entropy=[0.5 + 0.01 * i for i in range(100)], reward=[0.01 * i for i in range(100)]
        ),
    )

    @cached_property
    def _courses(self) -> tuple[Course, ...]:
        return tuple(Course(name, window=self.window) for name in self.reads)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The entropy, and what the reward does."""
        return (*self._courses, REWARD, REWARD_STD)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the limit and with the run's own past."""
        found = reported(now, self._courses, past)
        if found is None or not is_policy_run(past):
            return None
        metric, course = found
        limit = max(self.above, self.times * max(course.first, course.lowest))
        if not course.has_moved_on or course.mean <= limit or has_improved(past):
            return None
        return report(
            self, now, metric,
            f"the entropy is {course.mean:.3g} on average over {self.window} observations and began at {course.first:.3g}; "
            "the reward has not risen",
            onset_step=onset(past, metric, above(limit)), level=course.mean, first=course.first,
        )  # fmt: skip
