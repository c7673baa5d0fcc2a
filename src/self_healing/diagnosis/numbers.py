"""Collect the observations of an input run by run, and say what they show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..core.failure import Severity
from ..core.signal import Facts, Metrics, Signal
from . import whole_run
from .finding import Finding
from .hindsight import rule_findings
from .rules import judge
from .thinning import Point, Thinned

ENOUGH = 8
"""Observations of a last run that make it speak for the file."""
MOST_RUNS = 50
"""Runs of one file whose findings are kept, the newest."""
ORDER = (
    "nan_loss", "zero_loss", "nan_eval", "fp16_overflow", "divergence", "grpo_collapse", "grpo_kl_blowup", "grpo_length_explosion",
    "grpo_truncation", "grpo_zero_signal", "grpo_no_gradient", "grpo_no_improvement", "dpo_instability", "plateau_at_chance",
    "loss_collapse_anomalous", "overfitting", "loss_spike", "unstable", "dpo_slow", "plateau", "slow_learning", "grad_spike",
    "grad_norm_growth", "overfitting_suspected", "loss_scale_mismatch",
)  # fmt: skip
"""Classes of numbers by how much they explain, the most first; others follow."""


@dataclass
class RunStory:
    """What was found in one of the runs of a file."""

    number: int
    first_line: int
    last_line: int
    observations: int
    is_short: bool
    judged: int
    """Losses, evaluations or rewards among the observations, whichever there are most of."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        """Whether there was enough to see and nothing worse than information."""
        return not self.is_short and all(finding.severity is Severity.INFO for finding in self.findings)


class Numbers:
    """Takes observations in, judges each run when it is over, and forgets its numbers."""

    def __init__(self) -> None:
        self.asks_rules = True
        """False where the rules have watched the run already and their word is on record."""
        self.runs: list[RunStory] = []
        self.lines: list[int] = []
        """Lines of the newest observations of the run that is being read, the last few dozen."""
        self._number = -1
        self._run: Thinned | None = None

    def take(self, run: int, signal: Signal, line: int = 0) -> None:
        """Add an observation; what comes with another number begins another run."""
        if self._run is None or run != self._number:
            self.finish()
            self._number, self._run = run, Thinned()
        if isinstance(signal, Facts):
            self._run.facts.update(signal.facts)
        elif isinstance(signal, Metrics) and signal.values:
            self._run.take(Point(signal.step, line, signal.values))
            self.lines = [*self.lines[-39:], line]

    def finish(self) -> None:
        """Judge the run that was being read."""
        run, self._run = self._run, None
        if run is None or not run.seen:
            return
        run.finish()
        whole = whole_run.of(run)
        seen = judge(run) if self.asks_rules else []
        findings = merged([*rule_findings(seen, whole), *whole_run.checks(whole)])
        story = RunStory(
            number=len(self.runs), first_line=run.points[0].line, last_line=run.points[-1].line, observations=run.seen,
            is_short=whole.is_short, judged=max(len(whole.loss), len(whole.evaluation), len(whole.reward)), findings=findings,
        )  # fmt: skip
        self.runs = [*self.runs[-MOST_RUNS + 1 :], story]

    def findings(self) -> list[Finding]:
        """Return what was found, the last run first: where that one is fine, what came before it is information."""
        self.finish()
        if not self.runs:
            return []
        long = [run for run in self.runs if not run.is_short]
        main = long[-1] if long else self.runs[-1]
        others = [
            self._beside(finding, run, main)
            for run in reversed(self.runs)
            if run is not main
            for finding in run.findings
        ]
        known = {finding.fine for finding in main.findings if finding.severity > Severity.INFO}
        beside = [finding for finding in others if finding.fine not in known]
        same = [finding for finding in others if finding.fine in known]
        first, rest = merged([*main.findings, *same]), merged(beside)
        kept = {finding.fine for finding in rest}
        return sorted([*(f for f in first if f.fine not in kept), *rest], key=lambda finding: -finding.severity)

    def _beside(self, finding: Finding, run: RunStory, main: RunStory) -> Finding:
        """Return a finding of another run as grave as it is beside the last one, which speaks for the input."""
        told = replace(
            finding, evidence=(*finding.evidence, f"in run {run.number + 1} of {len(self.runs)} in this input")
        )
        if run.number > main.number or main.observations < ENOUGH:
            return told
        if main.is_fine:
            return told.eased(f"the last of {len(self.runs)} runs in this input is fine")
        return replace(told, severity=min(told.severity, Severity.WARNING))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with one entry a class, the gravest kept, ordered by severity and by what explains more."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        known = kept.get(finding.fine)
        if known is None:
            kept[finding.fine] = finding
        elif finding.severity > known.severity:
            kept[finding.fine] = _joined(finding, known)
        else:
            kept[finding.fine] = _joined(known, finding)
    return sorted(kept.values(), key=lambda f: (-f.severity, _place(f.fine)))


def _joined(main: Finding, other: Finding) -> Finding:
    return replace(
        main,
        evidence=tuple(dict.fromkeys((*main.evidence, *other.evidence)))[:12],
        also_possible=tuple(dict.fromkeys((*main.also_possible, *other.also_possible))),
        fix=tuple(dict.fromkeys((*main.fix, *other.fix))),
        references=tuple(dict.fromkeys((*main.references, *other.references))),
    )


def _place(fine: str) -> int:
    return ORDER.index(fine) if fine in ORDER else len(ORDER)
