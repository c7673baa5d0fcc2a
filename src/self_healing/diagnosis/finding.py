"""What a diagnosis says: findings, most likely first, and the report on one input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..core.diagnosis import Hypothesis
from ..core.failure import Severity

PUBLIC_CLASS = {
    "nan_weights": "nan_loss",
    "dead_run": "divergence",
    "corrupted_state": "unstable",
    "grad_vanishing": "plateau",
    "learning_rate_unexpected": "config_error",
    "stalled": "hang",
    "crash": "script_error",
    "preference_imbalance": "dpo_slow",
}
"""Classes that only a watched run needs, and what a reader of recordings calls the same thing."""

MOST_EVIDENCE = 8
MOST_ALTERNATIVES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, with what speaks for it and what to do about it."""

    name: str
    """The rule, pattern or check that found it."""
    fine: str
    """Its class, such as `overfitting`; written as `class`."""
    severity: Severity
    because: str
    """One sentence: what is taken to have happened, with the decisive numbers."""
    step: int | None = None
    line: int | None = None
    evidence: tuple[str, ...] = ()
    """The decisive lines and numbers."""
    also_possible: tuple[str, ...] = ()
    """What else it could be, and what would tell."""
    fix: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    is_echo: bool = False
    """True where it is usually a consequence: in a folder, a cause that another file tells comes first."""

    def to_json(self) -> dict[str, object]:
        """Return the finding as `--json` prints it."""
        return {
            "name": self.name,
            "class": self.fine,
            "severity": str(self.severity),
            "step": self.step,
            "line": self.line,
            "evidence": list(self.evidence),
            "because": self.because,
            "also_possible": list(self.also_possible),
            "fix": list(self.fix),
            "references": list(self.references),
        }

    def eased(self, why: str) -> Finding:
        """Return the finding as information only, and say why it is no more than that."""
        if self.severity is Severity.INFO:
            return self
        return replace(self, severity=Severity.INFO, because=f"{self.because.rstrip('.')}; {why}")


@dataclass(slots=True, kw_only=True)
class InputReport:
    """What was found in one input."""

    path: str
    format: str
    findings: list[Finding] = field(default_factory=list)
    is_usable: bool = True
    notes: list[str] = field(default_factory=list)
    """What was noticed while reading, for people only."""

    @property
    def healthy(self) -> bool:
        """Say whether there was something to judge and nothing worse than information was found."""
        return self.is_usable and all(finding.severity is Severity.INFO for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return the report as `--json` prints it."""
        return {
            "path": self.path,
            "format": self.format,
            "healthy": self.healthy,
            "findings": [finding.to_json() for finding in self.findings],
        }


def public_class(fine: str) -> str:
    """Return the class that a finding is published under."""
    return PUBLIC_CLASS.get(fine, fine)


def explained(finding: Finding, hypotheses: Sequence[Hypothesis], fallback: Sequence[str] = ()) -> Finding:
    """Return a finding with what its explanations know: evidence, alternatives, fixes and references."""
    first = hypotheses[0] if hypotheses else None
    evidence, fixes, references = finding.evidence, finding.fix, finding.references
    if first is not None:
        evidence = (*evidence, *first.found)
        fixes = (*fixes, *first.fixes)
        references = (*references, *first.references)
    others = tuple(_alternative(h) for h in hypotheses[: MOST_ALTERNATIVES + 1] if h.name != finding.name)
    return replace(
        finding,
        evidence=_once(evidence)[:MOST_EVIDENCE],
        fix=_once(fixes or tuple(fallback)),
        references=_once(references),
        also_possible=_once((*finding.also_possible, *others[:MOST_ALTERNATIVES])),
    )


def _alternative(hypothesis: Hypothesis) -> str:
    told = f"{hypothesis.name}: {hypothesis.says}"
    return f"{told} To tell: {hypothesis.confirm}" if hypothesis.confirm else told


def _once(items: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in items if item))
