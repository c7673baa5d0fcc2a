"""The story of a run, from its ledgers: what a report shows and what the live view shows are views of this one object.

Entries come in one by one, from files that are whole or still being written; memory does not grow with their number. Nothing
is decided here, no clock is read, and every text is cleaned before it is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core import notes
from ..core.heartbeat import Heartbeat
from ..core.ledger import CONTINUES, Entry
from .changes import known_actions
from .clean import Cleaner, as_text, number_of, step_of
from .curves import Curve
from .story import Story
from .timeline import Timeline
from .where_time_went import RunTimes, WhereTimeWent

MOST_LISTED = 200
"""Remarks, changes and returns that are listed, the newest."""
MEMORY = ("memory_bytes", "memory_reserved_bytes", "host_memory_bytes", "memory/max_alloc", "memory/max_reserved")
"""Gauges of memory, the first that is there is drawn."""
METRICS = frozenset({"loss", "eval_loss", "grad_norm", "learning_rate", "step_time_s", "reward", *MEMORY})
LOOKS_AT = 2**16
"""Characters of a text that are looked at; a few hundred of them are shown."""
GIB = 2**30
_UNTOLD = frozenset(
    "reflex goodput run-ended signals-thinned lines-lost killed attempt-began attempt-ended decided tracker-page record-left-out "
    "records-still-left-out row-left-out network-retried".split()
)
"""Notes that are told elsewhere in the report."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that the run said of itself."""

    step: int
    attempt: int
    rank: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that was changed while the run went on."""

    step: int
    attempt: int
    what: str
    said: str
    is_undo: bool = False


@dataclass(frozen=True, slots=True)
class Return:
    """A return to an earlier state."""

    from_step: int
    to_step: int
    attempt: int
    because: str


@dataclass(slots=True)
class RankFacts:
    """How far one rank has come."""

    rank: int
    last_step: int = 0
    events: int = 0
    time_s: float = 0.0
    loss: float | None = None
    beat: Heartbeat | None = None


@dataclass(slots=True)
class Outside:
    """What is known of a run besides its ledgers."""

    name: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    exit_reason: str = ""
    exception: str = ""
    advice: list[str] = field(default_factory=list)
    records: list[dict[str, str]] = field(default_factory=list)
    """Records that are left out, as `quarantine.jsonl` lists them."""
    incomplete: list[str] = field(default_factory=list)
    curves_from: str = ""
    """Where the curves come from, if not from the ledger."""


class RunStory:
    """Takes in the entries of all ledgers of a run; what there is to show is in its fields."""

    def __init__(self, clean: Cleaner | None = None) -> None:
        """Begin with nothing."""
        self.clean = clean or Cleaner(looks_at=LOOKS_AT)
        self._actions = known_actions()
        self.outside = Outside()
        self._begin()

    def _begin(self) -> None:
        """Begin anew: with the first entry, and where another run begins in the same folder."""
        self.account = Story(self._actions, self.clean)
        self._times = RunTimes()
        self.timeline = Timeline(self._actions, self.clean)
        self.curves: dict[str, Curve] = {}
        self.ranks: dict[int, RankFacts] = {}
        self.remarks: deque[Remark] = deque(maxlen=MOST_LISTED)
        self.changes: deque[Change] = deque(maxlen=MOST_LISTED)
        self.returns: deque[Return] = deque(maxlen=MOST_LISTED)
        self.attempt_ends: dict[int, str] = {}
        self.attempt_says: dict[int, str] = {}
        self.facts: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        """What the user has set; all else is as it comes."""
        self.max_steps: int | None = None
        self.mode = ""
        self.ended = ""
        self.entries = self._trained = self._repeated = 0
        self._is_supervised = self._has_printed_step = False
        self.is_thinned = False
        self.began_s = self.now_s = 0.0

    def take(self, entry: Entry, *, is_main: bool = True) -> None:
        """Take in one entry; `is_main` is false for the ledgers of ranks other than the first."""
        if is_main and entry.kind == "config" and entry.body.get(CONTINUES) is False and self.entries:
            self._begin()
        self.entries += 1
        self.began_s = self.began_s or entry.time
        self.now_s = max(self.now_s, entry.time)
        self._take_rank(entry)
        before = self.timeline.seen
        self.timeline.take(entry)
        self.ranks[entry.rank].events += self.timeline.seen - before
        if not is_main:
            return
        self.account.take(entry)
        self._times.take(entry)
        match entry.kind:
            case "config":
                self._take_config(entry)
            case "signal":
                self._take_signal(entry)
            case "outcome":
                self._take_changes(entry)
            case "note":
                self._take_note(entry)

    @property
    def last_step(self) -> int:
        """The step that the run has come to."""
        return self.account.attempts[-1].last_step if self.account.attempts else 0

    @property
    def tells_steps(self) -> bool:
        """Whether the run has said how far it came: a command that is only watched from outside may print no steps."""
        return bool(not self._is_supervised or self.mode or self.last_step or self._trained or self._has_printed_step)

    @property
    def steps_lost(self) -> int:
        """Steps that were trained more than once: after a return, or because a later attempt began before them."""
        return max(self.account.steps_lost, self._repeated)

    @property
    def trainer(self) -> str:
        """Which trainer it is, if that was told."""
        return self.facts.get("trainer", "")

    @property
    def memory(self) -> tuple[str, Curve] | None:
        """The gauge of memory that is drawn."""
        return next(((name, self.curves[name]) for name in MEMORY if name in self.curves), None)

    @property
    def spent(self) -> WhereTimeWent:
        """Where the wall time of the run went."""
        return self._times.told("")

    @property
    def goodput(self) -> float | None:
        """The share of the wall time that went into steps that count; None where nobody has told of it."""
        return self.spent.goodput if self.account.spent.to_json() else None

    def take_metric(self, name: str, step: int, value: object) -> None:
        """Take in one number of a metric; those that are not drawn are left."""
        if name not in METRICS:
            return
        number = value if type(value) is float else number_of(value)
        if number is None:
            return
        if name in MEMORY and not name.startswith("memory/"):
            number = number / GIB
        self.curves.setdefault(name, Curve()).take(step, float(number))

    def take_observed(self, step: int, values: Mapping[str, object]) -> None:
        """Take in an observation that somebody else has written down: a log, or the trainer's own record."""
        if "loss" in values:
            self._at(step)
        for name, value in values.items():
            self.take_metric(name, step, value)

    # -- parts ---------------------------------------------------------------------------------------

    def _take_rank(self, entry: Entry) -> None:
        rank = self.ranks.setdefault(entry.rank, RankFacts(entry.rank))
        rank.last_step, rank.time_s = entry.step, max(rank.time_s, entry.time)
        if entry.kind == "signal" and entry.name == "metrics":
            loss = number_of(_mapping(entry.body.get("values")).get("loss"))
            rank.loss = rank.loss if loss is None else float(loss)

    def _take_config(self, entry: Entry) -> None:
        self.ended = ""
        config, resolved = _mapping(entry.body.get("config")), _mapping(entry.body.get("resolved"))
        self.mode = self.clean.line(resolved.get("mode", ""))
        self.settings = {
            self.clean.line(key): self.clean.line(value) for key, value in list(config.items())[:64] if key != "v"
        }

    def _take_signal(self, entry: Entry) -> None:
        match entry.name:
            case "metrics":
                values = _mapping(entry.body.get("values"))
                if self.outside.curves_from and values.keys() & set(
                    METRICS
                ):  # the run itself knows better than its log
                    self.curves, self.outside.curves_from, self._trained, self._repeated = {}, "", 0, 0
                if "loss" in values or "grad_norm" in values:
                    self._at(entry.step)
                for name, value in values.items():
                    self.take_metric(name, entry.step, value)
            case "facts":
                facts = _mapping(entry.body.get("facts"))
                self.max_steps = step_of(facts.get("max_steps")) or self.max_steps
                for key, value in list(facts.items())[:64]:
                    if not key.startswith("nan_"):
                        self.facts[self.clean.line(key)] = self.clean.line(value)
            case "returned":
                before = step_of(entry.body.get("from_step")) or 0
                because = self.clean.line(entry.body.get("because") or "")
                self.returns.append(Return(before, entry.step, entry.attempt, because))

    def _at(self, step: int) -> None:
        """Take in where training is; what it trains again is undone in every curve."""
        if step < self._trained:
            self._repeated += self._trained - step + 1
            for curve in self.curves.values():
                curve.returned(step)
        self._trained = step

    def _take_changes(self, entry: Entry) -> None:
        """Take in what a plan has changed of the settings, and what was taken back."""
        plan = _mapping(entry.body.get("plan"))
        for raw in _list(entry.body.get("results")):
            result = _mapping(raw)
            name = as_text(result.get("action"))
            action = self._actions.get(name)
            changes = str(action.effect) == "recipe" if action is not None else plan.get("effect") == "recipe"
            if result.get("status") == "done" and (changes or name in _LASTING):
                said, is_undo = self.clean.line(result.get("text") or ""), bool(entry.body.get("is_undo"))
                self.changes.append(Change(entry.step, entry.attempt, self.clean.line(name), said, is_undo=is_undo))

    def _take_note(self, entry: Entry) -> None:
        body = entry.body
        match entry.name:
            case notes.ENDED:
                self.ended = self.clean.line(body.get("exit_reason") or "ended")
                self.attempt_ends[entry.attempt] = self.ended
            case "killed":
                number = step_of(body.get("of"))
                if number is not None:
                    self.attempt_ends[number] = "killed"
            case "attempt-ended":
                status, says = body.get("status"), self.clean.line(body.get("says") or "")
                self.attempt_ends.setdefault(entry.attempt, "completed" if status == 0 else _status(status))
                self.attempt_says[entry.attempt] = says
                self._has_printed_step |= body.get("step") is not None
            case "attempt-began":
                self.ended, self._is_supervised = "", True
                for each in _list(body.get("changes")):
                    self.changes.append(Change(entry.step, entry.attempt, "command", self.clean.line(each)))
            case "signals-thinned":
                self.is_thinned = True
            case "resuming":
                self.attempt_says.setdefault(entry.attempt, self.clean.line(body.get("text") or ""))
        if entry.name not in _UNTOLD and body.get("text"):
            name, text = self.clean.line(entry.name), self.clean.line(body["text"])
            self.remarks.append(Remark(entry.step, entry.attempt, entry.rank, name, text))


_LASTING = frozenset({"halve-batch-size", "enable-gradient-checkpointing", "exclude-node"})
"""Actions that keep the recipe, but leave the run configured in another way than it was asked for."""


def _status(status: object) -> str:
    number = step_of(status)
    if number is None:
        return "lost"
    return f"signal {-number}" if number < 0 else f"exit code {number}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
