"""The cause `judgements-unbalanced`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

UNEQUAL = 3.0


class JudgementsUnbalanced(Cause):
    """There are far more examples of one kind than of the other, and the weights are equal.

    KTO compares each example with what the policy does on average; where one kind is rare it has no say in that.
    """

    explains = ("kto-imbalance",)
    confirm = "Count the labels of the data set."
    fixes = (
        "Set undesirable_weight (Axolotl: kto_undesirable_weight) to desirable divided by undesirable examples.",
        "Or set desirable_weight the other way round; products between 1 to 1 and 4 to 3 are usual.",
        "Use batches of 4 and more per device.",
    )
    references = ("https://arxiv.org/abs/2402.01306",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Use the numbers of examples, else how often each kind was there."""
        good, bad = number(past, "desirable_records"), number(past, "undesirable_records")
        words = "examples"
        if good is None or bad is None:
            good, bad = float(past.finite_count("rewards/chosen")), float(past.finite_count("rewards/rejected"))
            words = "observations"
        if good + bad <= 0.0:
            return Evidence(weight=0.3)
        if good == bad:
            return None
        weight = 0.7 if max(good, bad) >= UNEQUAL * min(good, bad) else 0.5
        return Evidence(weight=weight, found=(f"{good:.0f} {words} are desirable, {bad:.0f} undesirable",))
