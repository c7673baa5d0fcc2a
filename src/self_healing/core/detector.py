"""The base class of a rule: options are its fields, examples are its tests, its docstring is its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import ClassVar, NoReturn

from .action import Ladder
from .failure import FailureType, Severity
from .history import History
from .incident import Incident
from .naming import kebab_case, summary_of
from .signal import Fact, Facts, Metrics, Raised, Signal
from .statistics import Statistic

DOC_SECTIONS = ("Why it matters", "What to try", "False alarms", "References")
"""The headings every rule's docstring must have, after its one-sentence summary."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A short recorded series on which a rule must fire, or must stay quiet."""

    title: str
    signals: tuple[Signal, ...]
    at_step: int | None
    """The step at which the rule must fire first; None where it must stay quiet throughout."""
    severity: Severity | None = None
    """The severity of that first firing, where the example is about it."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options the user has set on the rule for this example."""


def fires(
    title: str,
    *,
    at_step: int,
    severity: Severity | None = None,
    options: Mapping[str, object] | None = None,
    facts: Mapping[str, Fact] | None = None,
    signals: Iterable[Signal] = (),
    **series: Sequence[float | None],
) -> Example:
    """Describe a series, one keyword per metric, on which the rule fires first at `at_step` (counted from 0)."""
    made = (*_facts(facts), *_metrics(series), *signals)
    return Example(title=title, signals=made, at_step=at_step, severity=severity, options=options or {})


def quiet(
    title: str,
    *,
    options: Mapping[str, object] | None = None,
    facts: Mapping[str, Fact] | None = None,
    signals: Iterable[Signal] = (),
    **series: Sequence[float | None],
) -> Example:
    """Describe a series on which the rule must not fire at all."""
    made = (*_facts(facts), *_metrics(series), *signals)
    return Example(title=title, signals=made, at_step=None, options=options or {})


def _facts(facts: Mapping[str, Fact] | None) -> tuple[Signal, ...]:
    return (Facts(step=0, facts=facts),) if facts else ()


def _metrics(series: Mapping[str, Sequence[float | None]]) -> Iterable[Signal]:
    length = max((len(values) for values in series.values()), default=0)
    for step in range(length):
        values = {
            name.replace("__", "/"): column[step]
            for name, column in series.items()
            if step < len(column) and column[step] is not None
        }
        yield Metrics(step=step, time_s=float(step), values=values)  # type: ignore[arg-type]  # None was filtered


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A rule: a stateless reader of one signal and the past that reports an incident or nothing."""

    given: frozenset[str] = frozenset()
    """Names of the options the user has set; a fixed threshold acts only when it is among them."""

    failure: ClassVar[FailureType]
    fine: ClassVar[str]
    severity: ClassVar[Severity]
    """The severity the rule usually reports; `check` may report a lower or higher one."""
    metric: ClassVar[str | None] = None
    """The metric whose samples wait outside the baseline while an incident of this rule is open."""
    paced_by: ClassVar[str | None] = None
    """The metric by whose observations an incident of this rule ages; `metric`, else every observation."""
    patience_s: ClassVar[float | None] = None
    """For a rule about silence: seconds a remedy may take before more silence means that it failed."""
    listens: ClassVar[tuple[type[Signal], ...]] = (Metrics,)
    """The kinds of signal the rule wants to see; it is not called for others."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Metrics without any of which an observation says nothing to the rule, so that it is not called; none: it always is.

    A run that is watched at every step has time for few rules, and most are about runs of another kind.
    """
    remedy: ClassVar[Ladder] = ()
    """What to try, if no cause is found that knows better."""
    watch: ClassVar[int] = 32
    """Observations without this incident after an action before it counts as recovered."""
    examples: ClassVar[tuple[Example, ...]] = ()

    @property
    def looks_every(self) -> int:
        """Return how many observations there are from one look to the next, for a rule that waits for a block of them."""
        return 1

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense: every numeric option is positive; subclasses add their own limits."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < inf:
                self.refuse(item.name, "must be greater than 0")

    def refuse(self, option: str, allowed: str) -> NoReturn:
        """Raise the error for an option's value, naming key, value and what is allowed."""
        raise ValueError(f"[rules.{self.name()}] {option} = {getattr(self, option)!r}: {allowed}")

    @classmethod
    def name(cls) -> str:
        """Return the rule's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """Return the one sentence shown in lists."""
        return summary_of(cls)

    @classmethod
    def options(cls) -> dict[str, object]:
        """Return the rule's options with their defaults, by name."""
        return {item.name: item.default for item in fields(cls) if item.name != "given"}

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The statistics the rule reads, built from its own options so that they reach them."""
        return ()

    def ladder(self, incident: Incident) -> Ladder:
        """Return the remedies for an incident of this rule; override where an option or the numbers decide it."""
        return self.remedy

    def check(self, now: Signal, past: History) -> Incident | None:
        """Report an incident or nothing. `past` holds the readings of `now` against the past before it."""
        raise NotImplementedError

    def incident(
        self,
        now: Signal,
        because: str,
        *,
        severity: Severity | None = None,
        fine: str | None = None,
        excess: float | None = None,
        onset_step: int | None = None,
        stage: int = 0,
        is_costly: bool = False,
        text: str = "",
        **numbers: float,
    ) -> Incident:
        """Build this rule's incident for a signal."""
        raised = now if isinstance(now, Raised) else None
        return Incident(
            name=self.name(),
            failure=self.failure,
            fine=fine or self.fine,
            severity=self.severity if severity is None else severity,
            step=now.step,
            because=because,
            rank=now.rank,
            time_s=now.time_s,
            patience_s=self.patience_s,
            onset_step=onset_step,
            metric=self.metric,
            paced_by=self.paced_by or self.metric,
            looks_every=self.looks_every,
            excess=excess,
            stage=stage,
            is_costly=is_costly,
            numbers=numbers,
            exception=raised.exception if raised else "",
            bases=raised.bases if raised else (),
            text=raised.message if raised else text,
            where=raised.where if raised else "",
        )
