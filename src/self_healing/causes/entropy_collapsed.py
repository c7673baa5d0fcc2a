"""The cause `entropy-collapsed`."""

from __future__ import annotations

from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

COLLAPSED = 0.01
LOW = 0.05


class EntropyCollapsed(Cause):
    """The policy has stopped exploring and writes nearly the same completion every time.

    Healthy entropy lies between 0.05 and 0.5. Below 0.01 all completions of a group are alike, their rewards are
    equal, and nothing can be learned any more.
    """

    explains = (
        "entropy-collapse", "reward-flat", "reward-no-signal", "reward-collapse", "length-collapse", "loss-plateau",
        "gradient-vanishing", "loss-exactly-zero",
    )  # fmt: skip
    confirm = "Read the completions of one group: near copies of each other settle it."
    fixes = (
        "Sample at a higher temperature, 0.8 to 1.0.",
        "Lower the learning rate.",
        "Add a KL penalty: beta in the GRPO configuration.",
        "Use enough generations per prompt; 16 or more give better advantage estimates.",
    )
    remedy = (
        rung(RollBack(), ScaleLearningRate(), success=0.5),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.5),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def ladder(self, incident: Incident) -> Ladder:
        """Leave the rule about the entropy itself to its own order."""
        return () if incident.name == "entropy-collapse" else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Read the policy's entropy."""
        entropy = finite_latest(past, "entropy")
        if entropy is None or entropy >= LOW:
            return None
        found = (f"entropy is {entropy:.3g}; 0.05 to 0.5 is healthy",)
        return Evidence(weight=0.7 if entropy < COLLAPSED else 0.4, found=found)
