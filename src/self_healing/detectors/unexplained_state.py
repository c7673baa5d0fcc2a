"""The rule `unexplained-state`: weights or moments changed in a way that training cannot have caused."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Facts, Metrics, Signal


@dataclass(frozen=True, kw_only=True)
class UnexplainedState(Detector):
    """Weights or optimizer state changed by more than the optimizer can have changed them.

    ## Why it matters
    A flipped bit or an overwritten block leaves numbers that are finite and wrong. The loss shows it late or never, and
    every checkpoint written since is wrong too. Nothing in the recipe is to blame, so the steps since the last state
    that passed are simply done again: a glitch does not come back. A weight that does not train (below adapters) is in no
    state, so that a new process has to load it anew.

    ## What to try
    1. Test the device and its memory (`nvidia-smi -q -d ECC`, `dcgmi diag`): a flipped bit looks like this.
    2. Look for code of your own that writes to weights or optimizer state, such as averaging.

    ## False alarms
    None in the trainings of `bench/audit.py`, runs that diverge by themselves included: an audit compares with what the
    rates and gradients since the last snapshot allow. Code of yours that changes weights beside the optimizer (merging
    adapters, resetting units, pruning) is seen as corruption; switch the rule off for such a run.

    ## References
    Dixit et al. (2021), Silent data corruptions at scale, arXiv 2102.11245. The bounds: `snapshots/audit.py`.
    """

    failure = FailureType.HARDWARE
    fine = "corrupted_state"
    severity = Severity.ERROR
    listens = (Metrics, Facts)
    reads = ("state_unexplained",)
    paced_by = "state_unexplained"
    remedy = (
        rung(RollBack(), success=0.9),
        rung(RollBack(depth=1), success=0.7),
        rung(RollBack(depth=2), ScaleLearningRate(), success=0.4),
        rung(StopRun()),
    )
    watch = 2
    examples = (
        fires(
            "one tensor is enough",
            state_unexplained=[0.0, 0.0, 1.0],
            state_audited_from=[0.0, 10.0, 20.0],
            at_step=2,
            severity=Severity.ERROR,
        ),
        fires(
            "a weight that does not train",
            facts={"frozen_broken": "wte.weight: it does not train, and holds values that are not finite"},
            at_step=0,
            severity=Severity.ERROR,
        ),
        quiet("every change is explained", state_unexplained=[0.0] * 5, state_audited_from=[0.0, 10.0, 20.0, 30.0]),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire where an audit had findings; the trouble began after the snapshot before."""
        if isinstance(now, Facts):
            return self._broken_for_good(now)
        if not isinstance(now, Metrics) or not (tensors := now.get("state_unexplained")):
            return None
        since = now.get("state_audited_from")
        told = "" if since is None else f" since the snapshot of step {since:g}"
        return self.incident(
            now,
            f"{tensors:g} tensors of weights or optimizer state changed{told} in a way that no step can have caused",
            onset_step=None if since is None else int(since) + 1,
            tensors=tensors,
        )

    def _broken_for_good(self, now: Facts) -> Incident | None:
        """Fire where a weight that nothing trains is not what it was; no state holds it."""
        broken, since = now.facts.get("frozen_broken"), now.facts.get("frozen_sound_until")
        if not broken:
            return None
        onset = int(since) + 1 if isinstance(since, int | float) else None
        return self.incident(now, f"{broken}; no state holds it", onset_step=onset)
