"""A copy of a Trainer's checkpoint with another learning rate, made in a process of the command's own python.

What a checkpoint says of the rate wins over what the next attempt is told: optimizer and schedule bring it along. So the
next attempt is given a copy in which both are multiplied. All other files are links; nothing of the original is written.
The supervisor never imports torch: the program that does is this file itself.

    python slower_checkpoint.py SOURCE TARGET FACTOR
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

logger = logging.getLogger("self_healing.supervisor")

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
MOST_S = 600.0
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_LISTS = ("base_lrs", "_last_lr", "_initial_lrs", "max_lrs")


class NotMade(Exception):  # said to the user as it is
    """There is no such copy; the text says why."""


def make_slower(source: Path, target: Path, factor: float, argv: Sequence[str]) -> None:
    """Make the copy.

    Raises:
        NotMade: the checkpoint is of another kind, or it could not be written.

    """
    missing = [name for name in (OPTIMIZER, SCHEDULER) if not (source / name).is_file()]
    if missing:
        raise NotMade(f"{source.name} has no {' and no '.join(missing)}")
    command = [python_of(argv), "-I", __file__, str(source), str(target), repr(factor)]
    try:
        done = subprocess.run(  # noqa: S603  # the python of the user's own command
            command, capture_output=True, text=True, timeout=MOST_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMade(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        shutil.rmtree(target, ignore_errors=True)
        raise NotMade(last[:300])
    _describe_copy(source, target)


def _describe_copy(source: Path, target: Path) -> None:
    """Give the copy a manifest of its own: that of the original, with what was written anew; none where that cannot be had.

    What was linked keeps the checksums of the original, so that what has been damaged there is found here too.
    """
    from ..snapshots import file_marks, manifest  # noqa: PLC0415  # this file is run by itself too, by a python without it

    manifest.withdraw(target)  # it is the original's, and tells of other files
    try:
        known = manifest.manifest_of_now(source)
        if known is not None:
            anew = {name: file_marks.mark_of(target / name) for name in (OPTIMIZER, SCHEDULER) if name in known.files}
            manifest.write_manifest(target, replace(known, files={**known.files, **anew}))
    except (manifest.ManifestError, file_marks.FolderChangingError, OSError) as error:
        logger.warning("the copy %s has no manifest, and only its structure can be looked at: %s", target, error)


def python_of(argv: Sequence[str]) -> str:
    """Return the python that a command is run by; that of a script is named in its first line."""
    for word in argv[:4]:
        if Path(word).name.startswith("python"):
            return shutil.which(word) or word
        found = shutil.which(word)
        if found is None:
            continue
        with open(found, "rb") as file:  # noqa: PTH123  # this file is run by itself too
            first = file.readline(500).decode(errors="replace").strip()
        if first.startswith("#!") and "python" in first:
            return first[2:].split()[0]
    return sys.executable


def end_with_parent() -> None:
    """Have this process end when the supervisor does, also by `kill -9`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def _main() -> None:
    end_with_parent()
    import torch  # noqa: PLC0415  # never in the supervisor's own process

    source, target, factor = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in (OPTIMIZER, SCHEDULER):
            _link(path, target / path.name)
    for name in (OPTIMIZER, SCHEDULER):
        state = torch.load(source / name, map_location="cpu", weights_only=True)
        if not multiplied(state, factor):
            sys.exit(f"{name} holds no learning rate")
        torch.save(state, target / name)


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def multiplied(state: Any, factor: float) -> int:
    """Multiply every learning rate of an optimizer's or a schedule's state in place; return how many there were."""
    if isinstance(state, list | tuple):
        return sum(multiplied(each, factor) for each in state)
    if not isinstance(state, dict):
        return 0
    count = 0
    for key, value in state.items():
        if key in _RATES and isinstance(value, float | int) and not isinstance(value, bool):
            state[key], count = value * factor, count + 1
        elif key in _RATES and hasattr(value, "mul_"):
            value.mul_(factor)
            count += 1
        elif key in _LISTS and isinstance(value, list):
            state[key], count = [each * factor for each in value], count + len(value)
        elif key in ("param_groups", "_schedulers"):
            count += multiplied(value, factor)
    return count


if __name__ == "__main__":
    _main()
