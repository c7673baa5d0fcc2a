"""What the policy knows of the past: rebuilt from the ledger at every start, never rewound by a rollback."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import cast

from .failure import FailureType
from .ledger import CONTINUES, Entry
from .stop import WINDOW_STEPS, Spent

BY_HAND = "by-hand"
"""The incident name under which actions called by hand are recorded; they are no experience of the policy's."""

PRIOR_STRENGTH = 2.0
"""How many observed trials a prior success probability is worth."""


@dataclass
class RungRecord:
    """What experience in this run says of one rung for one class of failure."""

    successes: int = 0
    failures: int = 0
    seconds: float = 0.0
    """Mean measured cost of carrying it out."""
    uses: int = 0
    last_used: int = 0
    """Trained steps when it was last used."""

    def probability(self, prior: float) -> float:
        """Return the posterior mean of success under a Beta prior."""
        trials = self.successes + self.failures
        return (prior * PRIOR_STRENGTH + self.successes) / (PRIOR_STRENGTH + trials)


@dataclass
class Memory:
    """Attempts, successes, costs and repeats so far. Every entry of the ledger passes through `remember`."""

    trained_steps: int = 0
    """Optimizer steps observed, those lost to rollbacks counted too."""
    last_step: int | None = None
    """The step observed last; None where a process has just begun."""
    recoveries: deque[tuple[int, FailureType]] = field(default_factory=lambda: deque(maxlen=4096))
    """Trained steps and class of each recovery that counts."""
    total: int = 0
    seconds: float = 0.0
    rungs: dict[tuple[str, str], RungRecord] = field(default_factory=dict)
    tried: dict[FailureType, list[tuple[int, str]]] = field(default_factory=dict)
    """Rungs tried since the class last recovered, and when in trained steps: none of them has helped for good."""
    impossible: set[tuple[FailureType, str]] = field(default_factory=set)
    """Rungs that could not be carried out when they were tried last, since the class last recovered."""
    faithful_retries: set[str] = field(default_factory=set)
    """Fingerprints of failures that were already retried without changing anything."""

    def rung(self, failure: str, name: str) -> RungRecord:
        """Return the record of a rung, making an empty one where it is new."""
        return self.rungs.setdefault((failure, name), RungRecord())

    def spent(self, failure: FailureType) -> Spent:
        """Return what recoveries have cost, as one class of failure sees it."""
        since = self.trained_steps - WINDOW_STEPS
        recent = sum(1 for at, kind in self.recoveries if kind is failure and at > since)
        return Spent(failure=failure, recent=recent, total=self.total, seconds=self.seconds)

    def times_tried(self, failure: FailureType, name: str) -> int:
        """Return how often a rung was tried lately and since the class last recovered."""
        since = self.trained_steps - WINDOW_STEPS
        return sum(1 for at, tried in self.tried.get(failure, ()) if tried == name and at > since)

    def remember(self, entry: Entry) -> None:
        """Take in one ledger entry, whether it was just written or read from an earlier process's file."""
        if entry.kind == "signal":
            self._see_step(entry)
        elif entry.kind == "config":
            if entry.body.get(CONTINUES) is False:
                vars(self).update(vars(Memory()))
            self.last_step = None
        elif entry.kind == "outcome" and entry.name != BY_HAND:
            self._remember_outcome(entry)
        elif entry.kind == "verdict":
            self._remember_verdict(entry)

    def _see_step(self, entry: Entry) -> None:
        """Count steps forward; only a rollback, a resumption or a new process may take the counting back."""
        if entry.name in ("resumed", "returned") or (entry.name == "metrics" and self.last_step is None):
            self.last_step = entry.step
        elif entry.name == "metrics" and self.last_step is not None and entry.step > self.last_step:
            self.trained_steps += entry.step - self.last_step
            self.last_step = entry.step

    def _remember_outcome(self, entry: Entry) -> None:
        body = entry.body
        if body.get("is_undo"):
            return
        failure = FailureType(str(body["failure"]))
        name = str(body["rung"])
        seconds = float(cast("float", body["seconds"]))
        record = self.rung(failure, name)
        record.uses += 1
        record.seconds += (seconds - record.seconds) / record.uses
        record.last_used = self.trained_steps
        tries = self.tried.setdefault(failure, [])
        tries.append((self.trained_steps, name))
        del tries[:-64]
        self.seconds += seconds
        if isinstance(body.get("step_after"), int):
            self.last_step = cast("int", body["step_after"])
        if body.get("counts"):
            self.recoveries.append((self.trained_steps, failure))
            self.total += 1
        if not body.get("succeeded"):
            record.failures += 1
            self.impossible.add((failure, name))
        elif body.get("faithful") and body.get("fingerprint"):
            self.faithful_retries.add(str(body["fingerprint"]))

    def _remember_verdict(self, entry: Entry) -> None:
        failure = FailureType(str(entry.body["failure"]))
        record = self.rung(failure, str(entry.body["rung"]))
        if entry.name == "recovered":
            record.successes += 1
            self.tried.pop(failure, None)
            self.impossible -= {key for key in self.impossible if key[0] is failure}
        else:
            record.failures += 1
