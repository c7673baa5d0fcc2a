"""`heal watch RUN_DIR`: a run as it goes, in the terminal or in a browser on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ...watch.tail import RunTail


def command(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The directory of a run; it may come up later.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve the report on 127.0.0.1, for one browser.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="For --web; 0 takes one that is free.")] = 0,
    every: Annotated[float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run while it heals: its state, curves, incidents and current plan. Only reads; Ctrl-C ends the view.

    Exit codes: 0 also after Ctrl-C, 2 something that is no run directory.
    """
    from ...report.run_files import run_directory
    from ...watch.tail import RunTail

    place = Path(run_dir)
    is_one_frame = not web and (once or not _is_terminal())
    # Only who goes on looking can wait for a run that is not there yet.
    tail = RunTail(run_directory(place) if place.exists() or is_one_frame else place.absolute())
    try:
        if is_one_frame:
            _print_once(tail)
            return
        _step_back()
        if web:
            _serve(tail, port, every)
        else:
            _follow(tail, every)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _step_back() -> None:
    """Let whatever else the machine does go first: it is there to train."""
    import contextlib
    import os

    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()


def _print_once(tail: RunTail) -> None:
    from ..output import console, write

    while tail.poll():
        pass
    screen = console()
    with screen.capture() as captured:
        screen.print(_picture(tail, screen, height=60))
    write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def _follow(tail: RunTail, every: float) -> None:
    """Show frame after frame, on a screen of its own that is gone afterwards."""
    from rich.live import Live

    from ..output import console

    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            has_more = tail.poll()
            live.update(_picture(tail, screen, height=screen.size.height), refresh=True)
            time.sleep(0.02 if has_more else every)


def _picture(tail: RunTail, screen: Console, *, height: int) -> RenderableType:
    from ...watch.screen import frame, waiting

    width = screen.size.width
    if not tail.is_there:
        return waiting(tail.run_dir, width)
    return frame(tail.story, width=width, height=height, now_s=time.time(), is_ascii=screen.options.ascii_only)


def _serve(tail: RunTail, port: int, every: float) -> None:
    from ...watch.web import Site
    from ..output import show

    with Site(tail, port=port, every_s=max(every, 2.0)) as site:
        show(f"{site.address}")
        show("Open this address once, in a browser on this machine; Ctrl-C ends it.")
        import sys

        sys.stdout.flush()
        site.serve()
