"""Where this process stands when the run hangs: the stacks of its threads, and what torch knows of its collectives."""

from __future__ import annotations

import faulthandler
import logging
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger("self_healing.ranks")

_MOST_FRAMES = 12
_LONGEST_STACK = 800
"""A stack goes into every beat."""
_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")
"""The flight recorder, as builds with and without a device call it."""


def stack_of(thread: int) -> str:
    """Return where a thread of this process stands, a line for each frame, the innermost first."""
    lines: list[str] = []
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # how one looks at another thread
    while frame is not None and len(lines) < _MOST_FRAMES:
        code = frame.f_code
        lines.append(f"{code.co_name} ({'/'.join(Path(code.co_filename).parts[-2:])}:{frame.f_lineno})")
        frame = frame.f_back
    return "\n".join(lines)[:_LONGEST_STACK]


def save_standing(folder: Path, rank: int) -> str:
    """Write where this process stands to files, and return one sentence about it; never raises."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"stacks.rank{rank}.{stamp}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)  # needs nothing of the thread that hangs
        told = f"the stacks of this rank are in {path}"
        recorded = _flight_record()
        if recorded is not None:
            flight = folder / f"flight-recorder.rank{rank}.{stamp}.pickle"
            flight.write_bytes(recorded)
            told += f", its collectives in {flight}"
    except OSError as error:
        return f"the stacks could not be written to {path}: {error.strerror or error}"
    return told


def _flight_record() -> bytes | None:
    """Return what torch's flight recorder holds; None where there is none, or it was not switched on."""
    try:
        from torch._C import _distributed_c10d
    except ImportError:
        return None
    for name in _RECORDERS:
        dump: Callable[..., Any] | None = getattr(_distributed_c10d, name, None)
        if dump is None:
            continue
        try:
            recorded = dump()
        except (RuntimeError, TypeError, ValueError) as error:
            logger.debug("the flight recorder cannot be read: %s", error)
            continue
        if isinstance(recorded, bytes) and pickle.loads(recorded).get("entries"):  # noqa: S301  # of this very process
            return recorded
    return None
