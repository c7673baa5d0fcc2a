"""What came of a drill: read from the ledgers a run has left, and then compared with what the fault's file expects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.errors import LedgerError
from ..core.ledger import Entry, iter_ledger
from ..core.run_directory import healing_folder, ledger_path, supervisor_ledger_path
from ..core.run_ledgers import iter_run
from ..report.changes import known_actions
from ..report.clean import Cleaner
from ..report.story import Story
from .fault import Expected

PASSED_OVER = "checkpoint-passed-over"
UNTOLD = frozenset({"info"})
QUIET = frozenset({"wait"})
"""What does nothing to a run."""
NOTED: Mapping[str, str] = {"tracker-down": "go_on_without_it", "reward-unscored": "go_on_without_it"}
"""Notes that tell of a trouble, and what was done about it."""
ENDINGS = frozenset({"crashed", "exited"})
"""Rules that stand for whatever ended a process: what it was is said besides."""


@dataclass(kw_only=True)
class Found:
    """What the ledgers of one run say."""

    detected: bool = False
    step: int | None = None
    """When it was first noticed, in steps."""
    causes: tuple[str, ...] = ()
    """The incidents, those that led to a deed first, each once."""
    actions: tuple[str, ...] = ()
    """What was done, in its order, each once."""
    steps_lost: int = 0
    seconds_lost: float = 0.0
    incidents: int = 0
    """All that was noticed and is more than an information, or was acted on."""
    goes_on_at: int | None = None
    """The step at which a second process has begun; None where there was none."""


@dataclass(kw_only=True)
class Score:
    """One line of the scorecard; the fields up to `clean_eval_loss` are those of `--json`."""

    fault: str
    passed: bool | None
    """None where it was not run."""
    detected: bool = False
    delay_steps: int | None = None
    cause: str | None = None
    actions: tuple[str, ...] = ()
    steps_lost: int = 0
    seconds_lost: float = 0.0
    eval_loss: float | None = None
    clean_eval_loss: float | None = None
    unprotected: str = ""
    """What the same fault does to a run that nothing looks after."""
    problems: tuple[str, ...] = field(default=())
    """Why it was not passed, or not run."""

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints of it."""
        told = {name: value for name, value in asdict(self).items() if name not in ("unprotected", "problems")}
        return told | ({"detected": None, "cause": self.problems[0]} if self.passed is None else {})


def found_in(folder: Path) -> Found:
    """Read what the ledgers in a run directory say: of the training and its supervisor, and of its other ranks."""
    own = ledger_path(folder)
    books = [_Book(iter_run(own if own.exists() else None, supervisor_ledger_path(folder)))]
    for other in sorted(healing_folder(folder).glob("ledger.rank*.jsonl")):
        with suppress(LedgerError):  # a rank that was killed before it had written a line
            books.append(_Book(iter_ledger(other)))
    causes = [cause for book in books for cause in book.causes]
    steps = [step for book in books for step in book.steps]
    lost_steps, lost_seconds = books[0].between()
    return Found(
        detected=bool(causes),
        step=min(steps) if steps else None,
        causes=tuple(dict.fromkeys(causes)),
        actions=tuple(dict.fromkeys(action for book in books for action in book.actions)),
        steps_lost=books[0].story.steps_lost + lost_steps,
        seconds_lost=round(books[0].story.seconds_lost + lost_seconds, 2),
        incidents=len(causes),
        goes_on_at=books[0].goes_on_at(),
    )


class _Book:
    """One ledger, read to its end."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.story = Story(known_actions(), Cleaner())
        self.times: dict[int, list[float]] = {}
        """When steps were seen, of each attempt."""
        older: list[Entry] = []
        noted: list[Entry] = []
        for entry in entries:
            self.story.take(entry)
            if entry.kind == "signal":
                self.times.setdefault(entry.attempt, []).append(entry.time)
            if entry.kind == "note" and entry.name == "resuming" and "passed over" in str(entry.body.get("text")):
                older.append(entry)
            if entry.kind == "note" and entry.name in NOTED:
                noted.append(entry)
        told = [each for each in self.story.incidents if each["severity"] not in UNTOLD]
        deeds = [each for each in self.story.recovery_actions if not each["is_undo"]]
        acted: list[Mapping[str, Any]] = [each for each in deeds if set(_names(each)) - QUIET]
        classes = {str(each["name"]): str(each["class"] or each["failure"]) for each in told}
        self.causes = [
            f"{name}: {classes[name]}" if name in ENDINGS and name in classes else name
            for name in (
                *(str(each["incident"]) for each in acted),
                *(PASSED_OVER for _ in older),
                *(note.name for note in noted),
                *(str(each["name"]) for each in told),
            )
        ]
        self.steps = [*(_number(each["step"]) for each in (*acted, *told)), *(note.step for note in (*older, *noted))]
        self.actions = [name for each in deeds for name in _names(each)]
        self.actions += [
            *("resume" for each in list(self.story.attempts)[1:] if each.has_begun and each.first_step > 0),
            *("resume_from_older" for _ in older),
            *(NOTED[note.name] for note in noted),
        ]

    def goes_on_at(self) -> int | None:
        """Return the step at which the second process has begun; None where there was one."""
        return next((each.first_step for each in list(self.story.attempts)[1:] if each.has_begun), None)

    def between(self) -> tuple[int, float]:
        """Return steps trained again and seconds without a step because a process had to be started anew."""
        attempts = [each for each in self.story.attempts if each.has_begun]
        steps, seconds = 0, 0.0
        for before, after in pairwise(attempts):
            steps += max(0, before.last_step - after.first_step)
            seconds += max(0.0, self.times[after.number][0] - self.times[before.number][-1])
        return steps, seconds


def _names(deed: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in deed["actions"]]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


# -- the judgement -------------------------------------------------------------------------------------


def score(name: str, expected: Expected, found: Found, ended: Mapping[str, Any], clean: Mapping[str, Any]) -> Score:
    """Compare what was found with what the fault's file expects."""
    began = next(iter(ended.get("began") or ()), None)
    delay = None if found.step is None or began is None else max(0, found.step - began - 1)
    cause = next((each for each in found.causes if each in expected.cause), next(iter(found.causes), None))
    # A process that is killed takes the end of its ledger with it: what it had trained by then is known from the fault.
    unwritten = 0 if began is None or found.goes_on_at is None else began - found.goes_on_at
    line = Score(
        fault=name, passed=True, detected=found.detected, delay_steps=delay if found.detected else None, cause=cause, actions=found.actions,
        steps_lost=max(found.steps_lost, unwritten), seconds_lost=found.seconds_lost, eval_loss=ended.get("eval_loss"),
        clean_eval_loss=clean.get("eval_loss"),
    )  # fmt: skip
    line.problems = (*_unlike(expected, line), *_ill_ended(expected, ended, clean))
    line.passed = not line.problems
    return line


def _unlike(expected: Expected, line: Score) -> Iterator[str]:
    if not expected.cause:
        if line.detected:
            yield f"nothing is amiss, and {line.cause} was found"
        return
    if not line.detected:
        yield "not detected"
        return
    if line.cause not in expected.cause:
        yield f"found as {line.cause}, not as {' or '.join(expected.cause)}"
    if line.delay_steps is not None and line.delay_steps > expected.within:
        yield f"found after {line.delay_steps} steps, later than {expected.within}"
    for words in expected.actions:
        if not set(words.split("|")) & set(line.actions):
            yield f"{words.replace('|', ' or ')} was not done"


def _ill_ended(expected: Expected, ended: Mapping[str, Any], clean: Mapping[str, Any]) -> Iterator[str]:
    if ended.get("broken"):
        yield "the drill itself failed: " + str(ended["broken"]).strip().rpartition("\n")[2]
        return
    if not ended.get("is_finite", False):
        yield "the weights are not finite" if "is_finite" in ended else ended_as(ended)
        return
    if not expected.completes:
        return
    if ended.get("raised") or ended.get("steps") != ended.get("planned"):
        yield ended_as(ended)
        return
    loss, best = ended.get("eval_loss"), clean.get("eval_loss")
    if expected.excess is None or best is None:
        return
    if loss is None or not math.isfinite(loss):
        yield "the evaluation loss is not finite"
    elif expected.excess == 0.0 and loss != best:
        yield f"evaluation loss {loss:.6f}, not exactly {best:.6f}"
    elif loss > best * (1.0 + expected.excess):
        yield f"evaluation loss {loss:.4f}, more than {expected.excess:.0%} above {best:.4f}"


def ended_as(ended: Mapping[str, Any]) -> str:
    """Say in a few words how a run has ended."""
    step = ended.get("steps")
    if ended.get("is_hung"):
        return "hangs"
    if ended.get("signal"):
        import signal

        return f"dies: {signal.Signals(ended['signal']).name}"
    if ended.get("raised"):
        return f"{str(ended['raised']).partition(':')[0]} at {step}" if step else str(ended["raised"])
    if not ended.get("is_finite", True):
        return "NaN weights"
    loss = ended.get("eval_loss")
    if loss is None:
        return "ends without a loss"
    return f"loss {loss:.2f}" if loss < 1e5 else f"loss {loss:.0e}"
