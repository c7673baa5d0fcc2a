"""`heal drill -- COMMAND`: a user's own script, run once without a fault and once with each that can come from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import InputError, LedgerError
from ..core.ledger import iter_ledger
from ..core.run_directory import DRILL, VARIABLE, ledger_path
from .drill import Scorecard
from .fault import Fault
from .outside import Permit
from .scoring import Score, found_in, score
from .stages import faults

LEAST_STEPS = 6
SIGNALLED = "signalled"
"""The file that says that a command was signalled."""
LOSSES = 5
"""Of how many last steps the mean is the loss that runs are compared by."""
EXCESS, WITHIN = 0.05, 10
"""What a script of somebody's own may differ by: it need not be deterministic, and may log now and then only."""


def outside_faults() -> dict[str, type[Fault]]:
    """Return the faults that can come from outside."""
    return {name: kind for name, kind in faults().items() if kind.from_outside}


def drill_command(
    command: Sequence[str],
    folder: Path,
    *,
    only: Iterable[str] | None = None,
    told: Callable[[str], None] = lambda _text: None,
) -> Scorecard:
    """Run a command without a fault, then with each; every run has a folder of its own below `folder`.

    Raises:
        InputError: it cannot be drilled; the text says why and what to do.

    """
    wanted = {name: kind for name, kind in outside_faults().items() if only is None or name in set(only)}
    permit = Permit.issue(folder)
    try:
        began = time.monotonic()
        clean = _run(command, folder / "clean", permit, None, 0)
        seconds = time.monotonic() - began
        told("clean")
        if clean["code"]:
            raise InputError(
                f"the command fails without any fault: {_last_line(folder / 'clean')}; see {folder / 'clean' / 'output.txt'}"
            )
        is_guarded = clean["steps"] > 0
        if is_guarded and clean["steps"] < LEAST_STEPS:
            raise InputError(f"the command makes {clean['steps']} steps: a drill needs {LEAST_STEPS} at least")
        if not is_guarded and not any(kind.stage == "command" for kind in wanted.values()):
            raise InputError(_not_guarded())
        card = Scorecard(false_alarms=found_in(folder / "clean").incidents)
        at_step = clean["steps"] // 2
        for name, kind in wanted.items():
            if kind.stage != "command" and not is_guarded:
                card.scores.append(_not_run(name, _not_guarded()))
                continue
            place = folder / name
            if kind.stage == "command":
                planted = permit.variables(place, name, at_step) if is_guarded else None
                ended = _run_supervised(command, place, name.upper(), seconds, planted) | {
                    "began": [at_step] if is_guarded else []
                }
            else:
                ended = _run(command, place, permit, name, at_step) | {"began": [at_step]}
            told(name)
            if kind.stage == "command" and not is_guarded and not (place / SIGNALLED).exists():
                card.scores.append(_not_run(name, "the command had ended before its signal came"))
                continue
            card.scores.append(_scored(name, kind, place, ended, clean))
        return card
    finally:
        permit.withdraw()


def _scored(name: str, kind: type[Fault], place: Path, ended: dict[str, Any], clean: dict[str, Any]) -> Score:
    asked = kind.expected
    excess = None if asked.excess is None else max(EXCESS, asked.excess)
    ended["planned"] = clean["steps"]
    ended["raised"] = "" if ended["code"] == 0 else f"the command ended with {ended['code']}: {_last_line(place)}"
    return score(name, replace(asked, excess=excess, within=max(WITHIN, asked.within)), found_in(place), ended, clean)


def _not_run(name: str, why: str) -> Score:
    return Score(fault=name, passed=None, problems=(f"not run: {why}",))


def _not_guarded() -> str:
    return f"the script has no guarded run in the folder that {VARIABLE} names"


def _run(command: Sequence[str], place: Path, permit: Permit, fault: str | None, at_step: int) -> dict[str, Any]:
    place.mkdir(parents=True)
    environ = os.environ | permit.variables(place, fault, at_step)
    return _ended(place, _called(list(command), place, environ))


def _run_supervised(
    command: Sequence[str], place: Path, name: str, seconds: float, planted: dict[str, str] | None
) -> dict[str, Any]:
    """Run it under `heal run` and have it signalled: in a step where its run is guarded, else when half of its time is over."""
    place.mkdir(parents=True)
    environ = {key: value for key, value in os.environ.items() if key != DRILL} | (planted or {VARIABLE: str(place)})
    inner = list(command)
    if planted is None:
        after = [f"{0.5 * seconds:.2f}", name, str(place / SIGNALLED), "--"]
        inner = [sys.executable, "-m", "self_healing.drills.signalled", *after, *command]
    patience_s = max(10.0, 2 * seconds) if faults()[name.lower()].hangs else max(120.0, 10 * seconds)
    asked = ["--run-dir", str(place), "--hang-timeout", f"{patience_s:.0f}", "--backoff", "0.1"]
    return _ended(place, _called([sys.executable, "-m", "self_healing", "run", *asked, "--", *inner], place, environ))


def _called(command: list[str], place: Path, environ: dict[str, str]) -> int:
    with (place / "output.txt").open("ab") as output:
        try:
            return subprocess.run(  # noqa: S603  # the user's own
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, check=False
            ).returncode
        except OSError as error:
            raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from error


def _ended(place: Path, code: int) -> dict[str, Any]:
    """Read from the ledger how far a run came and what its last losses were."""
    losses: dict[int, float] = {}
    last = 0
    try:
        for entry in iter_ledger(ledger_path(place)):
            if entry.kind == "signal" and entry.name == "metrics":
                last = entry.step
                values = entry.body.get("values")
                loss = values.get("loss") if isinstance(values, dict) else None
                if isinstance(loss, int | float):
                    losses[entry.step] = float(loss)
    except LedgerError:
        losses = {}
    newest = [losses[step] for step in sorted(losses)[-LOSSES:]]
    return {
        "code": code, "steps": last, "is_finite": not newest or all(abs(each) < float("inf") for each in newest),
        "eval_loss": sum(newest) / len(newest) if newest else None,
    }  # fmt: skip


def _last_line(place: Path) -> str:
    text = (place / "output.txt").read_text(errors="replace").strip()
    return text.rpartition("\n")[2][:300] or "it says nothing"
