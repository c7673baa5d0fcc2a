"""Let the rules that watch live runs look at a recorded one, and collect what they report and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from ..assembly import build_healer
from ..config import HealingConfig
from ..core.capability import CAPABILITIES
from ..core.detector import Detector
from ..core.diagnosis import Hypothesis
from ..core.discover import discover_classes
from ..core.failure import Mode, Severity
from ..core.ledger import Entry, UnwrittenBook
from ..core.signal import Facts, Metrics
from .finding import Finding, explained, public_class
from .thinning import Thinned

_SECTION = re.compile(r"^\s*##\s+(.+?)\s*$", re.MULTILINE)
_ITEM = re.compile(r"^\s*(?:\d{1,2}\.|-)\s+", re.MULTILINE)


@dataclass
class Seen:
    """One incident as a rule reported it, and how often."""

    name: str
    fine: str
    severity: Severity
    step: int
    because: str
    times: int = 1
    last_step: int = 0
    is_open: bool = True
    hypotheses: tuple[Hypothesis, ...] = ()

    def finding(self, line: int | None = None) -> Finding:
        """Return it as a finding, with what its rule and its causes know."""
        evidence = [self.because]
        if self.times > 1:
            evidence.append(f"seen {self.times} times, last at step {self.last_step}")
        tries, references = advice_of(self.name)
        found = Finding(
            name=self.name, fine=public_class(self.fine), severity=self.severity, step=self.step, line=line,
            because=self.because, evidence=tuple(evidence), references=references,
        )  # fmt: skip
        return explained(found, self.hypotheses, tries)


class RuleNotes(UnwrittenBook):
    """The book of a recorded run: keeps incidents, what explains them, and how they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], Seen] = {}

    def take(self, entry: Entry) -> None:
        """Take in one entry, of a run that is judged now or of a ledger."""
        if entry.kind == "incident":
            self._incident(entry)
        elif entry.kind == "diagnosis":
            for known in self._of(entry.name):
                if not known.hypotheses:
                    known.hypotheses = _hypotheses(entry.body)

    def _incident(self, entry: Entry) -> None:
        body = entry.body
        event, fine = body.get("event"), str(body.get("class", ""))
        if event == "closed":
            for opened in self._of(entry.name):
                opened.is_open = False
            return
        severity = Severity.__members__.get(str(body.get("severity", "")).upper())
        if event not in ("opened", "worsened") or severity is None:
            return
        known = self.seen.get((entry.name, fine))
        because = str(body.get("because", ""))
        if known is None:
            self.seen[entry.name, fine] = Seen(
                name=entry.name, fine=fine, severity=severity, step=entry.step, because=because, last_step=entry.step
            )
            return
        known.times += event == "opened"
        known.last_step, known.is_open = entry.step, True
        if severity > known.severity:
            known.severity, known.because = severity, because

    def _of(self, name: str) -> Iterable[Seen]:
        return [known for known in self.seen.values() if known.name == name]


def _hypotheses(body: Mapping[str, object]) -> tuple[Hypothesis, ...]:
    listed = body.get("hypotheses")
    made = []
    for item in cast("list[dict[str, Any]]", listed if isinstance(listed, list) else []):
        try:
            made.append(
                Hypothesis(
                    name=str(item["name"]), says=str(item["says"]), weight=float(item["weight"]),
                    found=tuple(map(str, item["found"])), confirm=str(item["confirm"]),
                    fixes=tuple(map(str, item["fixes"])), references=tuple(map(str, item["references"])),
                )
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):  # a line that was changed by hand
            continue
    return tuple(made)


def judge(run: Thinned) -> list[Seen]:
    """Feed a run to the rules as if it were watched, and return what they reported."""
    config = HealingConfig()
    notes = RuleNotes()
    healer = build_healer(config, notes, CAPABILITIES, settings=replace(config.settings(), mode=Mode.ADVISE))
    if run.facts and run.points:
        healer.observe(Facts(step=run.points[0].step, facts=run.facts))
    for point in run.points:
        plan = healer.observe(Metrics(step=point.step, values=point.values))
        if plan is not None:
            healer.act(plan, None, lambda: 0.0)  # in this mode only a plan that asks nothing of the run is carried out
    return list(notes.seen.values())


@lru_cache(1)
def _rules() -> Mapping[str, type[Detector]]:
    return discover_classes("self_healing.detectors", Detector)


@lru_cache(256)
def advice_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a rule's page says to try, and where it has it from."""
    rule = _rules().get(name)
    text = (rule.__doc__ or "") if rule is not None else ""
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=False))
    tries = [" ".join(item.split()) for item in _ITEM.split(sections.get("What to try", "")) if item.strip()]
    references = [" ".join(item.split()) for item in _ITEM.split(sections.get("References", "")) if item.strip()]
    return tuple(tries), tuple(references)
