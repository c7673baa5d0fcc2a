"""Where the processes of a command that hangs stand: by py-spy where it is installed, else what the kernel tells."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

MOST_S = 10.0
MOST_PROCESSES = 64
_ADVICE = (
    "py-spy is not installed (pip install py-spy): python's stacks are in the output, where python could write them"
)


def save_stacks(pids: Iterable[int], path: Path) -> str:
    """Write the stacks of processes to a file, and return one sentence about it; never raises."""
    tool = shutil.which("py-spy")
    parts = [_of_process(pid, tool) for pid in list(pids)[:MOST_PROCESSES]]
    try:
        path.write_text("\n".join([*parts, "" if tool else _ADVICE]), encoding="utf-8", errors="replace")
    except OSError as error:
        return f"the stacks could not be written to {path}: {error.strerror}"
    return f"the stacks of {len(parts)} processes are in {path}"


def _of_process(pid: int, tool: str | None) -> str:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            told = f"process {pid}: {' '.join(process.cmdline())[:300]}\n  state {process.status()}, {process.num_threads()} threads"
    except psutil.Error as error:
        return f"process {pid}: {error}"
    where = _read(f"/proc/{pid}/wchan")
    told += f", in the kernel: {where}" if where not in ("", "0") else ""
    return f"{told}\n{_python(pid, tool)}" if tool else told


def _python(pid: int, tool: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # found on the user's own path
            [tool, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=MOST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"  py-spy: {error}"
    return done.stdout or f"  py-spy: {done.stderr.strip()[:300]}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
