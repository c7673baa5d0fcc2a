"""The rule `preference-likelihood-falling`: chosen answers become unlikely too."""

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
from ._run_health import below, onset, report

CHOSEN, REJECTED = "logps/chosen", "logps/rejected"

_CHOSEN = tuple(-200.0 + 20 * math.sin(i * i) for i in range(60))


@dataclass(frozen=True, kw_only=True)
class PreferenceLikelihoodFalling(Detector):
    """The log-probabilities of chosen and rejected answers have both fallen a long way.

    ## Why it matters
    A margin also grows when both answers become unlikely and the rejected one more so. The probability goes to answers
    nobody has seen: the loss and the margins look excellent while the model forgets how to write the good answers. In a
    KTO run the same holds for desirable and undesirable ones.

    ## What is normal
    Chosen answers that become a little less likely, by a tenth or two, while rejected ones fall further. With ORPO and CPO,
    which learn the chosen answer as well, they become more likely.

    ## What to try
    1. A lower `learning_rate`, fewer epochs.
    2. A higher `beta`.
    3. A likelihood term: `loss_type=["sigmoid", "sft"]` (TRL DPO), `rpo_alpha` (Axolotl), `cpo_alpha`.
    4. Pairs whose chosen and rejected answers differ more.

    ## False alarms
    Lengths make log-probabilities of batches vary, so means over `window` observations are compared. Chosen answers must
    have lost `share` of their first log-probability and five standard errors, rejected ones must have fallen too, and the
    implicit reward of chosen answers, where logged, must be negative.

    ## References
    Razin et al. (2024), Unintentional unalignment: likelihood displacement in direct preference optimization, arXiv
    2410.08847; Pal et al. (2024), Smaug: fixing failure modes of preference optimisation with DPO-Positive, arXiv
    2402.13228.
    """

    window: int = 24
    """Observations that are averaged."""
    share: float = 0.5
    """Fall of the chosen answers' log-probability, as a share of its first size."""

    failure = FailureType.DPO_PLATEAU
    fine = "dpo_instability"
    severity = Severity.WARNING
    reads = (CHOSEN,)
    paced_by = CHOSEN
    remedy = (
        rung(
            Alert(
                about="preference-likelihood-falling",
                advice="Lower the learning_rate, raise beta (Axolotl: rl_beta), or add the likelihood of chosen answers "
                "(TRL: loss_type=['sigmoid', 'sft']; Axolotl: rpo_alpha).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires(
            "both fall",
            at_step=76,
            logps__chosen=(*_CHOSEN, *(x - 150 for x in _CHOSEN)),
            logps__rejected=(*_CHOSEN, *(x - 300 for x in _CHOSEN)),
        ),
        quiet(
            "the chosen ones by a little",
            logps__chosen=(*_CHOSEN, *(x - 40 for x in _CHOSEN)),
            logps__rejected=(*_CHOSEN, *(x - 200 for x in _CHOSEN)),
        ),
        quiet(
            "longer answers, the policy is no further from its reference",
            logps__chosen=(*_CHOSEN, *(2 * x for x in _CHOSEN)),
            logps__rejected=(*_CHOSEN, *(2 * x for x in _CHOSEN)),
            rewards__chosen=[0.1] * 120,
        ),
    )

    @cached_property
    def _courses(self) -> tuple[Course, Course, Course]:
        return (
            Course(CHOSEN, window=self.window),
            Course(REJECTED, window=self.window),
            Course("rewards/chosen", window=self.window),
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The log-probabilities and the implicit reward of chosen answers."""
        return self._courses

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest means with the first ones."""
        if now.get(CHOSEN) is None:
            return None
        chosen, rejected, reward = (past.stat(course) for course in self._courses)
        if not chosen.has_moved_on or not rejected.ready or rejected.mean >= rejected.first:
            return None
        fall = chosen.first - chosen.mean
        if fall <= self.share * abs(chosen.first) or fall <= 5.0 * chosen.change_error:
            return None
        if reward.ready and reward.mean >= 0.0:
            return None
        half = 0.5 * (chosen.first + chosen.mean)
        return report(
            self, now, CHOSEN,
            f"the log-probability of chosen answers fell from {chosen.first:.4g} to {chosen.mean:.4g} and of rejected ones "
            f"from {rejected.first:.4g} to {rejected.mean:.4g} (means of {self.window} observations)",
            onset_step=onset(past, CHOSEN, below(half)), fall=fall,
        )  # fmt: skip
