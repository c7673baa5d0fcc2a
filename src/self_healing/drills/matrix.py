"""Every trainer met by every kind of fault, each run compared with the same training without the healer and without faults."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .fault import Fault
from .faults.nan_loss import NanLoss
from .faults.oom_above_two_rows import OomAboveTwoRows
from .faults.oom_once_in_backward import OomOnceInBackward
from .faults.oom_without_checkpointing import OomWithoutCheckpointing
from .faults.poisoned_batch import PoisonedBatch
from .faults.weight_nan import WeightNan
from .tiny_transformers_loop import LOOP, TinyTransformersLoop
from .tiny_trl import GENERATING, TINY, share_expected
from .trained import same, updates, weights

STEPS = 48
AT = 30
"""The step with the fault: late enough for the run to know what is normal, early enough to go on for a while."""
ALLOWED = 1.01
"""What a run may end with, as a multiple of the clean run's loss, where what was done is not exact."""
CLEAN, POISONED = "clean", "poisoned-batch"
ROWS: Mapping[str, Any] = {**TINY, LOOP: TinyTransformersLoop}
"""Every trainer, and a loop of one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A kind of fault, and what a run that has met it must show."""

    fault: Fault | None = None
    is_exact: bool = True
    """The healed run ends with the weights of the clean one, to the bit."""
    shows: str = ""
    """The figure of the run that is above zero where the fault was met and healed."""
    not_for: tuple[str, ...] = ()
    """Trainers whose batches cannot be cut."""
    settings: Mapping[str, Any] = field(default_factory=dict)


SATURATING = {name: PoisonedBatch(at_step=AT, only_gradient=True) for name in ("kto", "reward", "rloo")}
"""What poisons a trainer whose loss is flat wherever it is large."""
COLUMNS: Mapping[str, Column] = {
    CLEAN: Column(),
    "nan-loss": Column(fault=NanLoss(at_step=AT), shows="healing/made_up_steps"),
    "oom-once": Column(fault=OomOnceInBackward(at_step=AT), shows="healing/out_of_memory"),
    "oom-checkpointing": Column(
        fault=OomWithoutCheckpointing(at_step=AT),
        shows="healing/out_of_memory",
        settings={"gradient_checkpointing": False},
    ),
    "oom-pieces": Column(
        fault=OomAboveTwoRows(at_step=AT), is_exact=False, shows="healing/out_of_memory", not_for=("orpo", "cpo")
    ),
    POISONED: Column(fault=PoisonedBatch(at_step=AT), is_exact=False, settings={"max_grad_norm": 0.0}),
    "rollback": Column(fault=WeightNan(at_step=AT), shows="healing/rollbacks"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How one run has ended."""

    trainer: str
    column: str
    updates: int = 0
    is_finite: bool = False
    is_same: bool = False
    ratio: float = float("nan")
    """What the run ends with, as a multiple of what the clean run does: losses, or what is missing to the full reward."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def problems(self) -> list[str]:
        """Say what is not as it must be."""
        column = COLUMNS[self.column]
        if self.error:
            return [self.error]
        found = [] if self.updates == STEPS else [f"{self.updates} updates of {STEPS}"]
        found += [] if self.is_finite else ["weights are not finite"]
        if column.is_exact and not self.is_same:
            found.append("the weights are not those of the clean run")
        if not column.is_exact and not self.ratio <= ALLOWED:
            found.append(f"it ends {self.ratio - 1:.1%} above the clean run")
        if column.shows and not self.figures.get(column.shows, 0) > 0:
            found.append(f"the fault was not met: {column.shows} is 0")
        return found

    def __str__(self) -> str:
        """Return what stands in the table."""
        if self.problems():
            return "FAILED"
        return "exact" if self.is_same else f"{self.ratio - 1:+.2%}"


class Matrix:
    """Runs of tiny trainers; a clean one is trained once for all columns with its settings."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._clean: dict[tuple[Any, ...], Any] = {}

    def cells(self, trainers: Iterable[str] = tuple(ROWS), columns: Iterable[str] = tuple(COLUMNS)) -> Iterator[Cell]:
        """Train every combination that makes sense."""
        wanted = tuple(columns)
        for trainer in trainers:
            for column in wanted:
                if trainer not in COLUMNS[column].not_for:
                    yield self.cell(trainer, column)

    def cell(self, trainer: str, column: str) -> Cell:
        """Train one guarded run and compare it."""
        asked = COLUMNS[column]
        clean = self.clean(trainer, asked.settings)
        run = self.spoiled(trainer, column)
        figures = _healed(run)
        return Cell(
            trainer=trainer, column=column, updates=updates(run), is_finite=bool(weights(run).isfinite().all()),
            is_same=same(run, clean), ratio=self.ends_with(trainer, run) / self.ends_with(trainer, clean),
            figures=figures,
        )  # fmt: skip

    def unguarded(self, trainer: str, column: str) -> float:
        """Train the same with the fault and without the healer; return what it ends with as a multiple of the clean run."""
        run = self.spoiled(trainer, column)
        run.train()
        return self.ends_with(trainer, run) / self.ends_with(trainer, self.clean(trainer, COLUMNS[column].settings))

    def spoiled(self, trainer: str, column: str) -> Any:
        """Return a trainer with the fault planted."""
        asked = COLUMNS[column]
        run = _made(Path(tempfile.mkdtemp(prefix=f"{trainer}-{column}-", dir=self.folder)), trainer, asked.settings)
        fault = SATURATING.get(trainer, asked.fault) if column == POISONED else asked.fault
        if fault is not None:
            fault.plant(run)
        return run

    def clean(self, trainer: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return a stock run without the healer and without a fault."""
        key = (trainer, *sorted(settings.items()))
        if key not in self._clean:
            self._clean[key] = _made(self.folder / f"{trainer}-stock-{len(self._clean)}", trainer, settings)
            self._clean[key].train()
        return self._clean[key]

    def ends_with(self, trainer: str, run: Any) -> float:
        """Return a loss that falls as the trainer learns, of the weights alone: the hooks of faults are not in the way."""
        fresh = _made(self.folder / "evaluated", "trainer" if trainer == LOOP else trainer, {})
        fresh.model.load_state_dict(run.model.state_dict())
        if trainer in GENERATING:  # its own loss says nothing of what was learnt
            return 1.0 / share_expected(fresh)
        return float(fresh.evaluate()["eval_loss"])


def _made(folder: Path, trainer: str, settings: Mapping[str, Any]) -> Any:
    rate = 1e-2 if trainer in GENERATING else 2e-3
    return ROWS[trainer](folder, **{"max_steps": STEPS, "learning_rate": rate, "logging_steps": 1, **settings})


def _healed(run: Any) -> Mapping[str, Any]:
    """Train under guard; return the figures of healing."""
    from ..adapters.transformers import SelfHealingTrainer

    if isinstance(run, TinyTransformersLoop):
        run.heal()
        return run.figures
    metrics: Mapping[str, Any] = SelfHealingTrainer(run).train().metrics
    return metrics
