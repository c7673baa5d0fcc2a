"""What a ledger of ours says itself: the incidents of a watched run, what explains them, and how they ended."""

from __future__ import annotations

from ..core.ledger import CONTINUES, Entry
from ..core.signal import Signal, from_json
from .finding import Finding
from .rules import RuleNotes

_DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
_OURS = frozenset({"rule-crashed", "ledger-unwritable"})


class LedgerNotes:
    """Takes in the entries of a ledger."""

    def __init__(self) -> None:
        self.entries = 0
        self._notes = RuleNotes()

    def take(self, entry: Entry) -> None:
        """Take in one entry; one that was changed by hand is passed over."""
        if entry.kind == "config" and entry.body.get(CONTINUES) is False:
            self._notes = RuleNotes()  # another run begins in the same folder
        self.entries += 1
        try:
            self._notes.take(entry)
        except _DAMAGED:
            return

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
        found = []
        for seen in self._notes.seen.values():
            if seen.name in _OURS:
                continue
            finding = seen.finding()
            found.append(finding if seen.is_open else finding.eased("it was dealt with during the run"))
        return found
