"""NVIDIA's driver, asked through its own program within a time limit; torch is not needed for that."""

from __future__ import annotations

import shutil
import subprocess

LONGEST_S = 5.0
"""A driver that hangs says nothing of the run, and must not hold a check up."""
WHEELS = ((11, 8), (12, 1), (12, 4), (12, 6), (12, 8), (12, 9), (13, 0))
"""The versions of CUDA that https://download.pytorch.org/whl has a folder of builds for, as of 2026-11."""


def nvidia_smi(*words: str, path: str | None = None) -> str:
    """Return what `nvidia-smi` says, as it is found on a path; empty where it is not there, fails or does not answer."""
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603
            [program, *words], capture_output=True, text=True, timeout=LONGEST_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def torch_index(driver: tuple[int, int]) -> str | None:
    """Return where the newest builds of torch are that a driver can run; None where it is too old for all of them.

    Drivers older than every build of their own major version run those, too: within one they are compatible.
    """
    fitting = [cuda for cuda in WHEELS if cuda <= driver] or [cuda for cuda in WHEELS if cuda[0] == driver[0]][:1]
    return f"https://download.pytorch.org/whl/cu{fitting[-1][0]}{fitting[-1][1]}" if fitting else None
