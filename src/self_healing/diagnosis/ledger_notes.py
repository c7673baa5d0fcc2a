"""What a ledger of ours says itself: the incidents of a watched run, what it did at once, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.discover import discover_patterns
from ..core.failure import Severity
from ..core.ledger import CONTINUES, Entry
from ..core.notes import ENDED, REFLEX
from ..core.signal import Signal, from_json
from .finding import Finding, public_class
from .rules import RuleNotes

MOST_REFLEXES = 200
"""Kinds of trouble dealt with at once that are told apart."""
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
_OURS = frozenset({"rule-crashed", "ledger-unwritable"})
_WELL = frozenset({"completed", "pruned"})
_CLASS_OF = {
    "oom": "oom_gpu", "api_error": "network", "data_error": "data_shape", "nan_loss": "nan_loss", "disk": "disk_full",
    "checkpoint": "checkpoint_corrupt", "hardware": "gpu_hardware", "loss_spike": "loss_spike", "preempted": "preempted",
    "gradient_explosion": "grad_spike", "divergence": "divergence",
}  # fmt: skip
"""The class of what was dealt with at once, by its coarse one, where its text does not say more."""
_ENDS = {
    "sigterm": ("preempted", "was told to stop (SIGTERM)"), "sigusr1": ("preempted", "was told to stop (SIGUSR1)"),
    "sigusr2": ("preempted", "was told to stop (SIGUSR2)"), "sighup": ("preempted", "lost its terminal (SIGHUP)"),
    "sigint": ("user_interrupt", "was interrupted"), "killed": ("killed_unknown", "ended without a word"),
    "device_lost": ("gpu_hardware", "lost its device"), "hang": ("hang", "waited in vain for another rank"),
}  # fmt: skip
_TOLD = {"tracker-down": "tracker_error", "push-given-up": "hub_server_error"}
"""Notes that are troubles of their own, and their class."""


class LedgerNotes:
    """Takes in the entries of a ledger."""

    def __init__(self) -> None:
        self.entries = 0
        self._begin()

    def _begin(self) -> None:
        self._notes = RuleNotes()
        self._at_once: dict[tuple[str, str], Finding] = {}
        self._end: Mapping[str, object] | None = None
        self._last_step = 0

    def take(self, entry: Entry) -> None:
        """Take in one entry; one that was changed by hand is passed over."""
        if entry.kind == "config" and entry.body.get(CONTINUES) is False:
            self._begin()  # another run begins in the same folder
        self.entries += 1
        self._last_step = entry.step
        try:
            self._notes.take(entry)
            if entry.kind == "note":
                self._take_note(entry)
        except _DAMAGED:
            return

    def _take_note(self, entry: Entry) -> None:
        body = entry.body
        if entry.name == ENDED:
            self._end = body
        elif entry.name == REFLEX:
            text = f"{body['because']}"
            fine = _named(text) or _CLASS_OF.get(str(body["failure"]), "script_error")
            severity = Severity.INFO if body.get("helped") else Severity.WARNING
            self._add(str(body["incident"]), fine, severity, entry.step, f"{text}; {body['said']}")
        elif entry.name in _TOLD:
            self._add(entry.name, _TOLD[entry.name], Severity.INFO, entry.step, str(body["text"]))

    def _add(self, name: str, fine: str, severity: Severity, step: int, because: str) -> None:
        known = self._at_once.get((name, fine))
        if known is not None:
            worse = max(known.severity, severity)
            self._at_once[name, fine] = replace(known, severity=worse, evidence=(*known.evidence[:7], because))
        elif len(self._at_once) < MOST_REFLEXES:
            self._at_once[name, fine] = Finding(
                name=name, fine=fine, severity=severity, step=step, because=because, evidence=(because,)
            )

    def observed(self, entry: Entry) -> Signal | None:
        """Return what an entry observed, or None where it is none of the signals, or damaged."""
        if entry.kind != "signal":
            return None
        try:
            return from_json(entry.name, entry.body, step=entry.step, rank=entry.rank)
        except _DAMAGED:
            return None

    def findings(self) -> list[Finding]:
        """Return what the run reported; what was recovered from is information."""
        reason = (
            str(self._end.get("exit_reason")) if self._end is not None else "killed" if self.entries else "completed"
        )
        found = list(self._ending(reason))
        for seen in self._notes.seen.values():
            if seen.name in _OURS:
                continue
            finding = seen.finding()
            if not seen.is_open:
                finding = finding.eased("it was dealt with during the run")
            elif reason in _WELL and seen.severity < Severity.ERROR:
                finding = finding.eased("the run went on and completed")
            found.append(finding)
        return found + list(self._at_once.values())

    def _ending(self, reason: str) -> list[Finding]:
        if reason not in _ENDS:
            return []
        fine, what = _ENDS[reason]
        because = f"the run {what} at step {self._last_step}"
        if reason == "killed":
            because += ": it was killed, or still runs"
        severity = Severity.WARNING if reason in ("killed", "sigint") or fine == "preempted" else Severity.ERROR
        fix = (
            "Start the same script again with resume_from_checkpoint='auto': it goes on from the newest intact state.",
        )
        return [Finding(name=ENDED, fine=fine, severity=severity, step=self._last_step, because=because, fix=fix)]


def _named(text: str) -> str:
    """Return the class that the patterns find in a sentence, or nothing."""
    best, weight = "", 0.0
    for pattern in discover_patterns("self_healing.patterns"):
        evidence = pattern.evidence("", (), text)
        if evidence is not None and evidence.weight > weight:
            best, weight = public_class(pattern.fine), evidence.weight
    return best
