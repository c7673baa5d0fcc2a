"""The rule `kto-imbalance`: one kind of judgement outweighs the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ._run_health import report

CHOSEN, REJECTED = "rewards/chosen", "rewards/rejected"
FACTS = ("desirable_records", "undesirable_records", "desirable_weight", "undesirable_weight")
"""Facts of the data and the configuration that say it at once, where an adapter knows them."""


@dataclass(frozen=True, kw_only=True)
class KtoImbalance(Detector):
    """A KTO run sees far more of one kind of example than of the other, and the weights do not make up for it.

    ## Why it matters
    With hardly any undesirable examples the policy learns to like everything, and the reference point (`kl`) drifts with
    it; with hardly any desirable ones it learns only what not to say, and log-probabilities of everything fall.

    ## What is normal
    Desirable examples times `desirable_weight` to undesirable ones times `undesirable_weight` between 1 to 1 and 4 to 3.

    ## What to try
    `desirable_weight` or `undesirable_weight` (Axolotl: `kto_desirable_weight`, `kto_undesirable_weight`) so that both
    products are about equal; batches of 4 and more per device, so that each holds both kinds.

    ## False alarms
    Where the numbers of examples are known, their weighted ratio must be above `ratio`. Where they are not, how many
    observations lack one kind altogether is counted: one kind must be missing in a quarter of those that have the other,
    by four standard deviations. Larger batches hide it.

    ## References
    Ethayarajh et al. (2024), KTO: model alignment as prospect theoretic optimization, arXiv 2402.01306.
    """

    ratio: float = 3.0
    """Weighted ratio of the two kinds, either way, that is too high."""
    present: float = 0.75
    """Observations with the rarer kind, as a share of those with the other, that are too few."""
    after: int = 100
    """Observations with the commoner kind before that is judged."""

    failure = FailureType.DATA_ERROR
    fine = "preference_imbalance"
    severity = Severity.WARNING
    reads = ("kl",)
    paced_by = "kl"
    remedy = (
        rung(
            Alert(
                about="kto-imbalance",
                advice="Set desirable_weight or undesirable_weight so that weight times number is about equal for both "
                "(Axolotl: kto_desirable_weight, kto_undesirable_weight).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires(
            "twenty to one, as counted",
            at_step=0,
            facts={"desirable_records": 2000, "undesirable_records": 100},
            kl=[0.0] * 3,
            rewards__chosen=[0.0] * 3,
        ),
        fires(
            "most batches have no undesirable example",
            at_step=99,
            kl=[0.1] * 300,
            rewards__chosen=[0.2] * 300,
            rewards__rejected=[-0.2 if i % 5 == 0 else None for i in range(300)],
        ),
        quiet(
            "weights make up for it",
            facts={"desirable_records": 2000, "undesirable_records": 100, "undesirable_weight": 20.0},
            kl=[0.0] * 3,
            rewards__chosen=[0.0] * 3,
        ),
        quiet(
            "batches of one",
            kl=[0.1] * 300,
            rewards__chosen=[0.2 if i % 2 else None for i in range(300)],
            rewards__rejected=[None if i % 2 else -0.2 for i in range(300)],
        ),
        quiet("DPO", rewards__chosen=[0.2] * 300, rewards__rejected=[-0.2] * 300, rewards__accuracies=[0.7] * 300),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the numbers of examples, or how often each kind is there."""
        if now.get("kl") is None or (now.get(CHOSEN) is None and now.get(REJECTED) is None):
            return None
        counted = [past.facts.get(name, 1.0) for name in FACTS]
        if FACTS[0] in past.facts and FACTS[1] in past.facts:
            return self._by_numbers(now, [float(x) if isinstance(x, (int, float)) else 1.0 for x in counted])
        good, bad = past.finite_count(CHOSEN), past.finite_count(REJECTED)
        fewer, more = min(good, bad), max(good, bad)
        if more < self.after or fewer >= self.present * more or more - fewer < 4.0 * math.sqrt(good + bad):
            return None
        rarer = "undesirable" if bad < good else "desirable"
        return report(
            self, now, "kl", f"only {fewer} of {more} observations had an {rarer} example"
            if rarer == "undesirable" else f"only {fewer} of {more} observations had a {rarer} example",
            onset_step=0, present=fewer / more,
        )  # fmt: skip

    def _by_numbers(self, now: Signal, counted: list[float]) -> Incident | None:
        desirable, undesirable = counted[0] * counted[2], counted[1] * counted[3]
        smaller, larger = sorted((desirable, undesirable))
        if larger <= self.ratio * smaller:
            return None
        because = (
            f"{counted[0]:.0f} desirable examples of weight {counted[2]:g} stand against {counted[1]:.0f} undesirable ones of "
            f"weight {counted[3]:g}"
        )
        return report(self, now, "kl", because, onset_step=0)
