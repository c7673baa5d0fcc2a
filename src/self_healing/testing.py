"""For tests of rules, ours and yours: run a rule's examples, or a series, through the real core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .core.detector import Detector, Example
from .core.failure import Mode, Severity
from .core.healer import Healer
from .core.ledger import MemoryLedger
from .core.settings import Settings
from .core.signal import Signal


@dataclass(frozen=True, slots=True)
class Firing:
    """What a rule reported first."""

    step: int
    severity: Severity
    because: str


def first_firing(rule: Detector, signals: Iterable[Signal]) -> Firing | None:
    """Feed signals to the core with this one rule and return what it reports first, or None."""
    ledger = MemoryLedger()
    healer = Healer(settings=Settings(mode=Mode.OBSERVE), rules=(rule,), ledger=ledger)
    for signal in signals:
        healer.observe(signal)
        for entry in ledger.entries:
            if entry.kind == "incident":
                assert entry.name == rule.name(), f"{entry.body.get('because')}\n{entry.body.get('text', '')}"
                severity = Severity[str(entry.body["severity"]).upper()]
                return Firing(entry.step, severity, str(entry.body["because"]))
        ledger.entries.clear()
    return None


def check_example(rule_class: type[Detector], example: Example) -> None:
    """Assert that a rule does on one of its examples what the example says."""
    rule = rule_class(**example.options, given=frozenset(example.options))
    firing = first_firing(rule, example.signals)
    where = f"{rule_class.name()}, {example.title!r}"
    if example.at_step is None:
        assert firing is None, f"{where}: must stay quiet, but fired at step {firing.step}: {firing.because}"
        return
    assert firing is not None, f"{where}: must fire at step {example.at_step}, but stayed quiet"
    assert firing.step == example.at_step, f"{where}: must fire at {example.at_step}, fired at {firing.step}"
    if example.severity is not None:
        assert firing.severity is example.severity, f"{where}: must be {example.severity}, is {firing.severity}"
