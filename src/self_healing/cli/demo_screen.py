"""How `heal demo` looks: bars and colours on a terminal, plain lines elsewhere and where NO_COLOR is set."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from ..core.secrets import strip_control
from ..drills.demonstration import CLEAN, HEALED, STOCK, Demonstration, RunResult, Script, Watch
from .output import show, write

if TYPE_CHECKING:
    from rich.console import Console

    from .demo_story import Event

WIDTH = 100
ABOUT = {CLEAN: "no faults", HEALED: "faults, with healer", STOCK: "faults, no healer"}


class Screen:
    """Shows the trainings while they run and compares them afterwards."""

    def __init__(self) -> None:
        self.is_rich = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    # -- while they run ------------------------------------------------------------------------------

    @contextmanager
    def progress(self, script: Script) -> Iterator[Watch]:
        """Show how far each training is; yields what is to be told of each step."""
        self._say("A small language model is trained three times on this CPU, with the same seeds.", "bold")
        self._say(f"{len(script.faults)} faults hit the second and the third training:")
        for fault in script.faults:
            self._say(f"  - {fault.summary().partition(chr(10))[0]}", "dim")
        self._say()
        with self._bars(script) if self.is_rich else _lines(script) as watch:
            yield watch
        self._say()

    @contextmanager
    def _bars(self, script: Script) -> Iterator[Watch]:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.fields[run]:<6}", style="bold"), TextColumn("{task.description:<19}"), BarColumn(32),
            TextColumn("step {task.completed:>3.0f} of {task.total:.0f}"), TextColumn("loss {task.fields[loss]}"),
        )  # fmt: skip
        with Progress(*columns, console=self._console()) as bars:
            tasks: dict[str, Any] = {}

            def watch(name: str, step: int, loss: float) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(ABOUT[name], total=script.updates, run=name, loss="")
                bars.update(tasks[name], completed=step, loss=f"{loss:.3f}")

            yield watch

    # -- afterwards ----------------------------------------------------------------------------------

    def tell(self, result: Demonstration, events: Sequence[Event]) -> None:
        """Print what happened, what was done, how the trainings compare, and where the files are."""
        rows: list[Sequence[object]] = [(event.step, event.happened, event.done) for event in events]
        title = "What happened in the healed run, and what was done (from its ledger)"
        self._table(title, ("step", "what happened", "what was done"), rows, to_the_right=(0,))
        heads = ("", f"{CLEAN}\n{ABOUT[CLEAN]}", f"{HEALED}\n{ABOUT[HEALED]}", "difference", f"{STOCK}\n{ABOUT[STOCK]}")
        self._table("The three trainings side by side", heads, list(_comparison(result)), to_the_right=(1, 2, 3, 4))
        for sentence, style in _verdicts(result):
            self._say(sentence, style)
        self._say()
        run_dir = result.ledger.parent.parent
        for name, command, path in (
            ("postmortem", "", result.postmortem), ("ledger", "", result.ledger), ("replay it", f"{_heal()} replay ", result.ledger),
            ("see it", f"{_heal()} report ", run_dir),
        ):  # fmt: skip
            if path.exists() and result.ledger.exists():  # SELF_HEALING=off leaves none
                words = f"{name:<10}  {command}{path}"
                write(strip_control(words) + "\n")  # in one piece, to be copied

    def _say(self, text: str = "", style: str = "") -> None:
        from rich.text import Text

        self._print(Text(strip_control(text), style=style))

    def _table(
        self, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], *, to_the_right: tuple[int, ...]
    ) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        self._say(title, "bold")
        table = Table(
            box=box.SIMPLE_HEAD if self.is_rich else None, pad_edge=False, header_style="cyan", padding=(0, 1)
        )
        for place, head in enumerate(heads):
            side: Any = "right" if place in to_the_right else "left"
            table.add_column(head, justify=side, overflow="fold")
        for row in rows:
            cells = [strip_control(str(cell)) for cell in row]
            table.add_row(*(Text(cell, style="red" if _is_bad(cell) else "") for cell in cells))
        self._print(table)
        if not self.is_rich:  # a box ends with an empty line
            self._say()

    def _print(self, thing: Any) -> None:
        screen = self._console()
        with screen.capture() as captured:
            screen.print(thing)
        write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")

    def _console(self) -> Console:
        from rich.console import Console

        found = Console(markup=False, emoji=False, highlight=False)
        width = min(found.width, WIDTH) if sys.stdout.isatty() else WIDTH
        color: Any = "auto" if self.is_rich else None
        return Console(width=width, markup=False, emoji=False, highlight=False, color_system=color)


@contextmanager
def _lines(script: Script) -> Iterator[Watch]:
    """Say a few times how far a training is."""
    every = max(1, script.updates // 4)

    def watch(name: str, step: int, loss: float) -> None:
        if step == 1 or step % every == 0:
            show(f"{name:<6}  {ABOUT[name]:<19}  step {step:>3} of {script.updates}  loss {loss:.3f}")
            sys.stdout.flush()

    yield watch


def _heal() -> str:
    """Return the command as it can be typed here: `make demo` has it in an environment that is not active."""
    own = Path(sys.argv[0])
    return str(own) if own.name == "heal" and which("heal") is None else "heal"


def _comparison(result: Demonstration) -> Iterator[tuple[str, ...]]:
    clean, healed, stock = (result.runs[name] for name in (CLEAN, HEALED, STOCK))
    script = result.script
    for step in (1, *range(script.show_every, script.updates + 1, script.show_every)):
        cells = [_loss(run, step) for run in (clean, healed, stock)]
        ours, theirs = healed.losses.get(step), clean.losses.get(step)
        apart = f"{ours / theirs - 1:+.2%}" if ours is not None and theirs else ""
        yield f"loss, step {step}", cells[0], cells[1], apart, cells[2]
    yield (
        "loss, evaluation", f"{clean.eval_loss:.4f}", f"{healed.eval_loss:.4f}", f"{result.excess:+.2%}",
        f"{stock.eval_loss:.4f}",
    )  # fmt: skip
    updates = [f"{run.updates} of {script.updates}" for run in (clean, healed, stock)]
    yield "updates applied", updates[0], updates[1], "", updates[2]
    passes = [f"{run.forward_passes:g}" for run in (clean, healed, stock)]
    yield "forward passes", passes[0], passes[1], f"{result.extra_forward_passes:+g}", passes[2]
    seconds = [f"{run.seconds:.1f}" for run in (clean, healed, stock)]
    yield "seconds", seconds[0], seconds[1], f"{healed.seconds - clean.seconds:+.1f}", seconds[2]


def _loss(run: RunResult, step: int) -> str:
    """Return the loss that was logged for a step; a log that hides broken weights is not left to speak for itself."""
    if step not in run.losses:
        return "died"
    logged = f"{run.losses[step]:.3f}"
    return logged if run.broken_at is None or step < run.broken_at else f"{logged} (weights NaN)"


def _is_bad(cell: str) -> bool:
    return cell in ("died", "nan") or "NaN)" in cell


def _verdicts(result: Demonstration) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of the runs with faults, and in which style."""
    healed, stock, planned = result.runs[HEALED], result.runs[STOCK], result.script.updates
    ended = f" It was ended by {healed.ended_by}." if healed.ended_by is not None else ""
    figures = f"{healed.updates} of {planned} updates, evaluation loss {result.excess:+.2%} against clean"
    cost = f"{result.extra_forward_passes:g} extra forward passes"
    style = "bold green" if result.is_healed else "bold red"
    yield f"With the healer: {figures}, {cost}.{ended}", style
    fate = "it ran to its end" if stock.ended_by is None else f"it died in step {len(stock.losses) + 1}"
    why = "" if stock.ended_by is None else f" ({stock.ended_by})"
    if stock.broken_at is not None:
        said = "0.0" if not stock.losses[stock.broken_at] else f"{stock.losses[stock.broken_at]:.3f}"
        fate = f"its weights were NaN after step {stock.broken_at}, while its log said loss {said}; {fate}"
    yield f"Without: {fate}{why}.", "bold red" if stock.ended_by or not math.isfinite(stock.eval_loss) else ""
