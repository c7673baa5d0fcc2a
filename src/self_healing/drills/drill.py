"""`heal drill`: every fault of the catalogue in a tiny training, and what the healer has made of it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .fault import Fault
from .scoring import Score, ended_as, found_in, score
from .stages import faults
from .warm import Warm

WITH_TRANSFORMERS = frozenset({"trainer", "grpo"})
LOOPS = 2
"""Processes that train loops at the same time."""
V = 1
Key = tuple[str, str]


@dataclass(kw_only=True)
class Scorecard:
    """What came of all of them."""

    scores: list[Score] = field(default_factory=list)
    false_alarms: int = 0
    """What the healer has found in runs without a fault."""
    seconds: float = 0.0

    @property
    def is_passed(self) -> bool:
        """Say whether every fault that was run has been healed, and nothing was found where nothing was."""
        return not self.false_alarms and all(each.passed is not False for each in self.scores)

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints; a fault that was not run is neither passed nor failed, and its cause says why."""
        return {
            "v": V,
            "faults": [each.to_json() for each in self.scores],
            "clean": {"false_alarms": self.false_alarms},
        }


@dataclass(frozen=True)
class _Run:
    """One training that is to be made."""

    stage: str
    fault: str | None
    needs: str
    """What the clean run has to have, too, to be compared."""
    guarded: bool


def missing(fault: type[Fault]) -> list[str]:
    """Return the packages that a fault needs and that are not installed."""
    return [name for name in fault.requires if find_spec(name) is None]


def drill(
    folder: Path,
    *,
    only: Iterable[str] | None = None,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    unprotected: bool = True,
    told: Callable[[str], None] = lambda _text: None,
) -> Scorecard:
    """Train with each fault, guarded and not, and the clean runs beside them; read their ledgers.

    Args:
        folder: Where the runs go, each in a folder of its own.
        only: Names of faults; all where not said.
        seed: Of weights and the order of data.
        config: Settings of `HealingConfig` for the guarded runs.
        unprotected: Whether the same is trained without the healer, too.
        told: Is told of each training that has ended.

    """
    wanted = {name: kind for name, kind in faults().items() if only is None or name in set(only)}
    can_run = {name: kind for name, kind in wanted.items() if not missing(kind)}
    runs = _planned(can_run, unprotected=unprotected)
    results = _made(folder, runs, seed=seed, config=dict(config or {}), told=told)
    card = Scorecard()
    for run, (place, ended) in results.items():
        if run.fault is None and run.guarded:
            card.false_alarms += found_in(place).incidents
            assert not ended.get("broken"), ended["broken"]
    for name, kind in wanted.items():
        if name not in can_run:
            card.scores.append(Score(fault=name, passed=None, problems=(f"not run: needs {', '.join(missing(kind))}",)))
            continue
        place, ended = results[_Run(kind.stage, name, "", guarded=True)]
        _, clean = results[_Run(clean_stage(kind), None, "", guarded=True)]
        line = score(name, kind.expected, found_in(place), ended, clean)
        if unprotected:
            line.unprotected = ended_as(results[_Run(kind.stage, name, "", guarded=False)][1])
        card.scores.append(line)
    return card


def clean_stage(kind: type[Fault]) -> str:
    """Return the stage whose run without a fault one with this fault is compared with."""
    return kind.stage if kind.stage in ("ranks", "trainer", "grpo") else "loop"


def _planned(kinds: Mapping[str, type[Fault]], *, unprotected: bool) -> list[_Run]:
    """Return all trainings, the longest first, so that none of them is waited for alone."""
    order = {"command": 0, "ranks": 1, "grpo": 2, "resumed": 3}
    runs = [_Run(clean_stage(kind), None, "", guarded=True) for kind in kinds.values()]
    for name, kind in sorted(kinds.items(), key=lambda item: order.get(item[1].stage, 9)):
        runs += [_Run(kind.stage, name, "", guarded=guarded) for guarded in ((True, False) if unprotected else (True,))]
    return sorted(dict.fromkeys(runs), key=lambda run: order.get(run.stage, 9))


def _made(
    folder: Path, runs: list[_Run], *, seed: int, config: dict[str, Any], told: Callable[[str], None]
) -> dict[_Run, tuple[Path, dict[str, Any]]]:
    """Make all trainings: loops in two processes that have torch, trainers in one that has transformers, at the same time."""
    waiting: dict[str, queue.SimpleQueue[_Run]] = {"loop": queue.SimpleQueue(), "trainer": queue.SimpleQueue()}
    for run in runs:
        waiting["trainer" if run.stage in WITH_TRANSFORMERS else "loop"].put(run)
    done: dict[_Run, tuple[Path, dict[str, Any]]] = {}
    errors: list[BaseException] = []

    def work(kind: str) -> None:
        try:
            if waiting[kind].empty():
                return
            warm = Warm(kind)
            try:
                while not errors:
                    run = waiting[kind].get_nowait()
                    place = folder / _name(run)
                    job = {
                        "stage": run.stage, "fault": run.fault, "folder": str(place), "seed": seed, "guarded": run.guarded,
                        "config": config if run.fault is not None else {},
                    }  # fmt: skip
                    done[run] = place, warm.run(job)
                    told(_name(run))
            finally:
                warm.close()
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            errors.append(error)

    loops = min(LOOPS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else LOOPS)
    workers = [threading.Thread(target=work, args=(kind,)) for kind in ["trainer", *["loop"] * loops]]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return done


def _name(run: _Run) -> str:
    return f"{run.fault or 'clean-' + run.stage}{'' if run.guarded else '-unprotected'}"
