"""What a rule reports: a named symptom with the numbers that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .failure import FailureType, Severity

if TYPE_CHECKING:
    from .diagnosis import Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A named symptom, seen at one step on one rank."""

    name: str
    """The rule that reported it, such as `loss-spike`."""
    failure: FailureType
    fine: str
    """The fine class, such as `grad_spike`."""
    severity: Severity
    step: int
    because: str
    """One sentence with the decisive numbers."""
    rank: int = 0
    time_s: float = 0.0
    """When it was seen, by the adapter's clock."""
    subject: str = ""
    """What it is about, where one name covers several things: the rule that crashed."""
    patience_s: float | None = None
    """For an incident of silence: seconds a remedy may take before more silence means that it failed."""
    onset_step: int | None = None
    """Where the trouble began, if the rule can tell; a rollback must go back to before it."""
    metric: str | None = None
    """The metric whose samples wait outside the baseline while the incident is open."""
    paced_by: str | None = None
    """The metric whose observations count for it: an incident of evaluations ages by evaluations."""
    looks_every: int = 1
    """Observations from one look of its rule to the next: in between it is silent whatever there is to see."""
    excess: float | None = None
    """How far the metric is from normal, in its own unit; a falling excess means it is healing by itself."""
    is_costly: bool = False
    """True where so much was lost that to learn it again takes longer than a return over few steps."""
    only_errors_count: bool = False
    """True where a warning is a remark of its own: it does not mean that a trouble which was returned from is back."""
    stage: int = 0
    """Rises where the same incident reaches a new stage at the same severity and deserves another plan."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    exception: str = ""
    """Qualified class name of the exception, where there was one."""
    bases: tuple[str, ...] = ()
    text: str = ""
    """Exception message or last lines of output: what patterns look at."""
    where: str = ""
    trace: str = ""
    """The end of a traceback of ours; never matched against patterns."""
    diagnosis: Diagnosis | None = field(default=None, compare=False, repr=False)
    """What may have caused it, most likely first: for the user's hooks; the ledger has it in a line of its own."""

    @property
    def began(self) -> int:
        """The step where the trouble began, as far as is known."""
        return self.step if self.onset_step is None else self.onset_step

    @property
    def fingerprint(self) -> str:
        """Tell whether two failures are the same one: same exception, same place, same step."""
        return f"{self.exception}|{self.where}|{self.step}" if self.exception else ""
