"""The rule `ebft-off-course`: an energy-based fine-tuning run does not come closer to its targets."""

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
from ._run_health import is_after, report

ALIGNMENT, DIVERSITY, CFM_LOSS = "ebft/alignment", "ebft/diversity", "ebft/cfm_loss"


@dataclass(frozen=True, kw_only=True)
class EbftOffCourse(Detector):
    """Alignment, diversity or feature-matching loss of an EBFT run is where it should not be.

    ## Why it matters
    EBFT (Axolotl) rewards completions whose features match those of the targets. Low alignment means that they do not,
    a high diversity term that completions of a prompt resemble one another so much that it outweighs the rest (mode
    collapse), and a high feature-matching loss that neither improves.

    ## What is normal
    `ebft/alignment` rises, to 0.3 to 0.9; `ebft/diversity` 0.01 to 0.1; `ebft/cfm_loss` falls, below 10.

    ## What to try
    1. A lower `learning_rate`, a higher `temperature`.
    2. The weights of alignment and diversity in the `ebft:` section.
    3. More `num_generations`.

    ## False alarms
    Means and medians over `window` observations after `after_step` and the warm-up. Alignment and loss count only where they are no
    better than in the beginning.

    ## References
    Axolotl, Training stability and debugging, for these three metrics and their ranges.
    """

    window: int = 16
    """Observations that are averaged."""
    after_step: int = 100
    """Steps in which alignment and loss are never judged; the warm-up, where known, is added."""
    alignment: float = 0.3
    """Mean alignment that is low."""
    diversity: float = 1.0
    """Median diversity term that is high."""
    cfm_loss: float = 10.0
    """Median feature-matching loss that is high."""

    failure = FailureType.RL_COLLAPSE
    fine = "ebft_off_course"
    severity = Severity.WARNING
    reads = (ALIGNMENT, DIVERSITY, CFM_LOSS)
    remedy = (
        rung(
            Alert(
                about="ebft-off-course",
                advice="Axolotl: lower the learning_rate, raise trl.temperature or trl.num_generations, and check the "
                "weights in the ebft section.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("does not align", at_step=100, ebft__alignment=[0.1 + 0.01 * math.sin(i * i) for i in range(120)]),
        fires("all alike", at_step=37, ebft__diversity=[0.05] * 30 + [1.1] * 20),
        fires("the loss grows", at_step=100, ebft__cfm_loss=[8.0] * 90 + [14.0] * 30),
        quiet(
            "on its way",
            ebft__alignment=[0.1 + 0.001 * i for i in range(300)],
            ebft__diversity=[0.05] * 300,
            ebft__cfm_loss=[20.0 * math.exp(-i / 100) + 3 for i in range(300)],
        ),
    )

    @cached_property
    def _courses(self) -> tuple[Course, Course, Course]:
        return (
            Course(ALIGNMENT, window=self.window),
            Course(DIVERSITY, window=self.window),
            Course(CFM_LOSS, window=self.window),
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The three metrics."""
        return self._courses

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look at each of the three that is reported."""
        if now.get(ALIGNMENT) is None and now.get(DIVERSITY) is None and now.get(CFM_LOSS) is None:
            return None
        alignment, diversity, loss = (past.stat(course) for course in self._courses)
        window = f"(mean of {self.window} observations)"
        if diversity.ready and diversity.median > self.diversity:
            because = f"the diversity term is {diversity.median:.3g} (median of {self.window} observations): completions of a prompt are nearly alike"
            return report(self, now, DIVERSITY, because, level=diversity.median)
        if not is_after(now, past, self.after_step):
            return None
        risen = alignment.mean - alignment.first > 2.0 * alignment.change_error
        if alignment.has_moved_on and alignment.mean < self.alignment and not risen:
            because = f"the alignment is {alignment.mean:.3g} {window} and began at {alignment.first:.3g}"
            return report(self, now, ALIGNMENT, because, onset_step=0, level=alignment.mean)
        loss_fell = loss.first - loss.mean > 2.0 * loss.change_error
        if loss.has_moved_on and loss.median > self.cfm_loss and not loss_fell:
            because = f"the feature-matching loss is {loss.median:.3g} (median of {self.window} observations) and began at {loss.first:.3g}"
            return report(self, now, CFM_LOSS, because, onset_step=0, level=loss.median)
        return None
