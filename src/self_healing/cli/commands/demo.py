"""`heal demo`: a small language model is trained three times, while things go wrong; told in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NEEDED = ("torch", "transformers", "trl", "datasets")


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="DIR", help="Keep the files here; default: a new temporary folder."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train for a few seconds only.")] = False,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Replay a made-up sick run instead; needs no torch.")
    ] = False,
) -> None:
    """Train a small model while faults hit it: without them, with the healer, and with the stock trainer.

    Takes about a minute on a CPU. Exit code 0 if the healed run has made all planned updates and its evaluation loss is
    at most 1 % above that of the clean run.
    """
    if recorded:
        _replay(as_json=as_json)
        return
    _need_the_frameworks()
    folder = _folder(output)
    raise typer.Exit(0 if _demonstrate(folder, quick=quick, as_json=as_json) else 1)


def _replay(*, as_json: bool) -> None:
    from ..output import show_json
    from ..recorded_demo import replay_sick_run, tell
    from .replay import _as_json

    result = replay_sick_run()
    if as_json:
        show_json(_as_json(result))
    else:
        tell(result)


def _need_the_frameworks() -> None:
    from importlib.util import find_spec

    from ...core.errors import InputError

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"heal demo trains a small model and needs {', '.join(missing)}: pip install 'self-healing-training[hf]'; "
            "without them, heal demo --recorded shows a made-up run, and heal replay FILE what would have been done "
            "in a recorded run of yours"
        )


def _folder(output: str | None) -> Path:
    """Return an empty folder: what an earlier run has left would be taken up again, its list of bad records for one."""
    import tempfile

    from ...core.errors import InputError

    if output is None:
        return Path(tempfile.mkdtemp(prefix="heal-demo-"))
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise InputError(f"--output {output}: cannot be used as a folder: {error.strerror}") from error
    if not is_empty:
        raise InputError(f"--output {output}: is not empty; name a new folder")
    return folder.resolve()


def _demonstrate(folder: Path, *, quick: bool, as_json: bool) -> bool:
    from ...drills.demonstration import FULL, QUICK, demonstrate
    from ..demo_screen import Screen
    from ..demo_story import as_data, events_of
    from ..output import show_json
    from ..quiet import quiet_frameworks

    script = QUICK if quick else FULL
    with quiet_frameworks():
        if as_json:
            result = demonstrate(folder, script)
            show_json(as_data(result, events_of(result.ledger)))
        else:
            screen = Screen()
            with screen.progress(script) as watch:
                result = demonstrate(folder, script, watch)
            screen.tell(result, events_of(result.ledger))
    return result.is_healed
