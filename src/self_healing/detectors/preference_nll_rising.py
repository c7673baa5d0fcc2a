"""The rule `preference-nll-rising`: a run forgets to write the answers it learns to prefer."""

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
from ._run_health import above, onset, report

NLL = "nll_loss"

_DOWN = tuple(1.0 + math.exp(-i / 30) + 0.05 * math.sin(i * i) for i in range(120))


@dataclass(frozen=True, kw_only=True)
class PreferenceNllRising(Detector):
    """The likelihood loss of a CPO or ORPO run on chosen answers rises again.

    ## Why it matters
    These methods have no reference model: the likelihood of chosen answers is all that keeps the policy in place. When it
    falls, the preference term wins by making everything unlikely, and the margins go on looking better.

    ## What is normal
    A fall, then a level with noise.

    ## What to try
    1. More weight for the likelihood: a larger `cpo_alpha` (CPO), a smaller `beta` (ORPO; Axolotl: `orpo_alpha`).
    2. A lower `learning_rate`.
    3. SimPO without a likelihood term (`cpo_alpha=0`) needs a rate below 1e-6.

    ## False alarms
    The mean over `window` observations must be above the lowest by `share` of it, by half of what had been learned, and by
    five standard errors. It only warns.

    ## References
    Xu et al. (2024), Contrastive preference optimization, arXiv 2401.08417; Hong et al. (2024), ORPO, arXiv 2403.07691;
    Meng et al. (2024), SimPO, arXiv 2405.14734.
    """

    window: int = 16
    """Observations that are averaged."""
    share: float = 0.3
    """Rise above the lowest mean, as a share of it, that is too much."""

    failure = FailureType.DPO_PLATEAU
    fine = "dpo_instability"
    severity = Severity.WARNING
    reads = (NLL,)
    paced_by = NLL
    remedy = (
        rung(
            Alert(
                about="preference-nll-rising",
                advice="Give the likelihood more weight (TRL, Axolotl: cpo_alpha; ORPO: a smaller beta or orpo_alpha), or "
                "lower the learning_rate.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("rises", at_step=130, nll_loss=(*_DOWN, *[2.2] * 40)),
        quiet("falls and levels off", nll_loss=(*_DOWN, *_DOWN[60:])),
        quiet(
            "noise around very little",
            nll_loss=[0.03 * math.exp(-i / 8) + 0.001 * (2 + math.sin(i * i)) for i in range(200)],
        ),
    )

    @cached_property
    def _course(self) -> Course:
        return Course(NLL, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The likelihood loss."""
        return (self._course,)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the lowest and the first."""
        if now.get(NLL) is None:
            return None
        course = past.stat(self._course)
        rise = course.mean - course.lowest
        needed = max(self.share * course.lowest, 0.5 * (course.first - course.lowest), 5.0 * course.change_error)
        if not course.has_moved_on or rise <= needed:
            return None
        half = course.lowest + 0.5 * rise
        return report(
            self, now, NLL,
            f"the likelihood loss of chosen answers is {course.mean:.3g} (mean of {self.window} observations) and was "
            f"{course.lowest:.3g} at its lowest",
            onset_step=onset(past, NLL, above(half)), level=course.mean, lowest=course.lowest,
        )  # fmt: skip
