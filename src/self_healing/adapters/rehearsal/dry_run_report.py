"""What a dry run found out: figures, estimates for the whole run, and problems with hints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...core.diagnosis import diagnose
from ...core.discover import discover_patterns
from ...core.failure import FailureType, Severity
from ...core.history import History
from ...core.incident import Incident
from ..exceptions import describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong, or will be."""

    what: str
    where: str
    hint: str = ""
    name: str = ""
    """The pattern or check that knows it."""
    is_fatal: bool = True
    """The run would fail or learn nothing; False for what only deserves a look."""

    def __str__(self) -> str:
        hint = f" {self.hint}" if self.hint else ""
        return f"{'PROBLEM' if self.is_fatal else 'note'} in {self.where}: {self.what}{hint}"


@dataclass(slots=True, kw_only=True)
class DryRunReport:
    """The outcome of `dry_run`; `ok` where nothing was found that would end the run or make it worthless."""

    trainer: str = ""
    device: str = ""
    steps: int = 0
    """Optimizer steps that were completed."""
    batch: str = ""
    """What the steps were made with."""
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of each step."""
    eval_loss: float | None = None
    eval_seconds: float | None = None
    peak_device_bytes: int | None = None
    device_bytes: int | None = None
    peak_host_bytes: int = 0
    planned_steps: int | None = None
    checkpoint_bytes: int | None = None
    checkpoints: int | None = None
    """The most checkpoints that lie on the disk at a time."""
    free_disk_bytes: int | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Say whether training can begin."""
        return not any(problem.is_fatal for problem in self.problems)

    @property
    def seconds_per_step(self) -> float | None:
        """The time of a step once warm: the mean of all but the first, where there are more."""
        warm = self.seconds[1:] or self.seconds
        return sum(warm) / len(warm) if warm else None

    @property
    def estimated_seconds(self) -> float | None:
        """The time of all planned steps, evaluations and saves not counted: at most, since the batches were large."""
        step = self.seconds_per_step
        return None if step is None or self.planned_steps is None else step * self.planned_steps

    @property
    def disk_bytes(self) -> int | None:
        """What the checkpoints will take at most."""
        return None if self.checkpoint_bytes is None else self.checkpoint_bytes * (self.checkpoints or 0)

    def __str__(self) -> str:
        rows = [
            ("result", "ok" if self.ok else "NOT ok"),
            ("steps", ", ".join(filter(None, (f"{self.steps} on {self.device}", self.batch)))),
            ("loss", ", ".join(f"{loss:.4g}" for loss in self.losses)),
            ("eval loss", "" if self.eval_loss is None else f"{self.eval_loss:.4g}"),
            ("step time", "" if self.seconds_per_step is None else f"{self.seconds_per_step:.3g} s"),
            ("whole run", self._whole_run()),
            ("device memory", self._of(self.peak_device_bytes, self.device_bytes)),
            ("host memory", in_words(self.peak_host_bytes)),
            ("checkpoint", in_words(self.checkpoint_bytes)),
            ("disk", self._disk()),
        ]
        lines = [f"dry run of {self.trainer}", *(f"  {name:<14} {text}" for name, text in rows if text)]
        return "\n".join([*lines, *(f"  {problem}" for problem in self.problems)])

    def _whole_run(self) -> str:
        seconds = self.estimated_seconds
        return "" if seconds is None else f"{self.planned_steps:,} steps, at most about {_duration(seconds)}"

    def _disk(self) -> str:
        return self._of(self.disk_bytes, self.free_disk_bytes, f"for at most {self.checkpoints} checkpoints", "free")

    def _of(self, part: int | None, whole: int | None, what: str = "", kind: str = "in all") -> str:
        if part is None:
            return ""
        text = f"{in_words(part)} {what}".strip()
        return text if whole is None else f"{text}, {in_words(whole)} {kind}"


def in_words(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.3g} TiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.3g} min"
    return f"{minutes / 60:.3g} h"


def most_checkpoints(args: Any, planned_steps: int, epochs: int) -> int:
    """Return how many checkpoints lie on the disk at a time, by strategy and limit."""
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no":
        return 0
    if strategy == "epoch":
        count: int = epochs
    else:
        every = args.save_steps if strategy == "steps" else (args.eval_steps or args.save_steps)
        every = math.ceil(planned_steps * every) if every < 1 else every
        count = math.ceil(planned_steps / max(every, 1))
    limit: int | None = args.save_total_limit
    if not limit or limit <= 0:
        return max(count, 1)
    # A new one is written before the oldest is removed, and the best one is kept besides.
    return max(1, min(count, limit + 1 + bool(args.load_best_model_at_end)))


def problem_of(error: BaseException, where: str, *, is_fatal: bool = True) -> Problem:
    """Return an exception as a problem, explained by the patterns."""
    told = describe(error)
    first_line = (told["message"].strip().split("\n", 1)[0])[:300]
    short = f"{told['exception'].rpartition('.')[2]}: {first_line}"
    incident = Incident(
        name="crashed", failure=FailureType.CRASH, fine="script_error", severity=Severity.ERROR, step=0, because=short,
        exception=told["exception"], bases=told["bases"], text=told["message"], where=told["where"],
    )  # fmt: skip
    # Without causes nothing can crash.
    diagnosis = diagnose(
        incident, (), discover_patterns("self_healing.patterns"), History(), lambda _name, _error: None
    )
    place = f"{where} ({told['where']})" if told["where"] else where
    leading = diagnosis.leading
    if leading is None:
        return Problem(what=short, where=place, name=told["exception"], is_fatal=is_fatal)
    return Problem(
        what=f"{leading.says} {short}", where=place, hint=" ".join(leading.fixes), name=leading.name, is_fatal=is_fatal
    )
