"""`heal drill`: every fault of the catalogue in a tiny training, or in a script of one's own, as a scorecard."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...drills.drill import Scorecard
    from ...drills.scoring import Score

CONTEXT = {"allow_interspersed_args": False}
"""What stands behind the first word is the command's, whatever it looks like."""
COLUMNS = (
    "fault", "", "found", "as", "done", "lost", "loss (clean)", "without the healer",
)  # fmt: skip
QUIET = frozenset({"alert", "wait"})


def command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="A script of your own to drill, in place of the built-in training.")
    ] = None,
    *,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME[,NAME]", help="Only these faults.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and start nothing.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and the order of data.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[str | None, typer.Option("--output", metavar="DIR", help="Keep the runs here; default: they are removed.")] = None,
) -> None:  # fmt: skip
    """Cause every known fault in a tiny training, and show what the healer makes of it, beside a run without it.

    With `-- COMMAND`, a script of your own is run once for each fault that can come from outside; its runs are written
    below the drill's folder, which the script finds in SELF_HEALING_RUN_DIR.

    Exit codes: 0 every fault was healed and nothing was found in clean runs, 1 one was not, 2 no drill was possible.
    """
    names = _chosen(only, has_command=bool(words))
    if listed:
        _list(has_command=bool(words))
        return
    _need_torch(has_command=bool(words))
    with _folder(output) as folder:
        began = time.monotonic()
        card = _drilled(words or [], folder, names, seed, _progress(quiet=as_json))
        card.seconds = time.monotonic() - began
        _show(card, as_json=as_json, kept=folder if output is not None else None)
    raise typer.Exit(0 if card.is_passed else 1)


def _chosen(only: str | None, *, has_command: bool) -> list[str] | None:
    """Return the faults that are asked for; None for all."""
    from ...core.errors import InputError
    from ...drills.stages import faults

    if only is None:
        return None
    known = faults()
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise InputError(f"--only {name}: there is no such fault; heal drill --list names them")
        if has_command and not known[name].from_outside:
            raise InputError(
                f"--only {name}: cannot come from outside; heal drill --list -- COMMAND names those that can"
            )
    if not names:
        raise InputError("--only names no fault; heal drill --list does")
    return names


def _list(*, has_command: bool) -> None:
    from ...drills.stages import faults
    from ..output import show_table

    kinds = {name: kind for name, kind in faults().items() if kind.from_outside or not has_command}
    rows = [(name, kind.summary(), kind.stage, ", ".join(kind.requires)) for name, kind in kinds.items()]
    show_table(f"{len(rows)} faults", ("fault", "what happens", "in a", "needs"), rows, widest="what happens")


def _need_torch(*, has_command: bool) -> None:
    from importlib.util import find_spec

    from ...core.errors import InputError

    if sys.platform == "win32":
        raise InputError("heal drill forks processes and signals them, which Windows cannot; use WSL")
    if not has_command and find_spec("torch") is None:
        raise InputError("heal drill trains a tiny model and needs torch: pip install 'self-healing-training[torch]'")


@contextlib.contextmanager
def _folder(output: str | None) -> Iterator[Path]:
    from .demo import _folder as empty_folder

    if output is not None:
        yield empty_folder(output)
        return
    made = Path(tempfile.mkdtemp(prefix="heal-drill-")).resolve()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _drilled(
    words: list[str], folder: Path, names: list[str] | None, seed: int, told: Callable[[str], None]
) -> Scorecard:
    if words:
        from ...drills.user_script import drill_command

        return drill_command(words, folder, only=names, told=told)
    from ...drills.drill import drill

    return drill(folder, only=names, seed=seed, told=told)


def _progress(*, quiet: bool) -> Callable[[str], None]:
    """Return what tells a person who waits at a terminal how far it is."""
    if quiet or not sys.stderr.isatty():
        return lambda _name: None
    return lambda name: print(f"\r\x1b[2K{name} ", end="", file=sys.stderr, flush=True)


def _show(card: Scorecard, *, as_json: bool, kept: Path | None) -> None:
    from ..output import show, show_json, show_table

    if sys.stderr.isatty() and not as_json:
        print("\r\x1b[2K", end="", file=sys.stderr)
    if as_json:
        show_json(card.to_json())
        return
    show_table("heal drill", COLUMNS, [_row(each) for each in card.scores])
    for each in card.scores:
        if each.passed is False:
            show(f"{each.fault} FAILED: {'; '.join(each.problems)}")
    run = [each for each in card.scores if each.passed is not None]
    left = len(card.scores) - len(run)
    show(
        f"{sum(bool(each.passed) for each in run)} of {len(run)} drills passed"
        + (f", {left} not run" if left else "")
        + f"; {card.false_alarms} false alarms in clean runs; {card.seconds:.0f} s"
    )
    if kept is not None:
        show(f"The runs are in {kept}.")


def _row(line: Score) -> tuple[str, ...]:
    if line.passed is None:
        return (line.fault, "-", "", "", line.problems[0], "", "", "")
    delay = "nothing to find" if line.passed and not line.detected else "not found"
    if line.detected:
        delay = "-" if line.delay_steps is None else "at once" if line.delay_steps == 0 else f"{line.delay_steps} steps"
    deeds = [name for name in line.actions if name not in QUIET] or list(line.actions)
    return (
        line.fault, "ok" if line.passed else "FAILED", delay, line.cause or "-", ", ".join(deeds) or "-",
        f"{line.steps_lost} steps, {line.seconds_lost:.1f} s", _losses(line), line.unprotected or "-",
    )  # fmt: skip


def _losses(line: Score) -> str:
    if line.eval_loss is None or line.clean_eval_loss is None:
        return "-"
    if line.eval_loss == line.clean_eval_loss:
        return f"{line.eval_loss:.3f} exact"
    return f"{line.eval_loss:.3f} ({line.clean_eval_loss:.3f})"
