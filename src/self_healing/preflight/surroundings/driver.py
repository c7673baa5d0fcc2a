"""NVIDIA's driver, asked through its own program within a time limit; torch is not needed for that."""

from __future__ import annotations

import shutil
import subprocess

LONGEST_S = 5.0
"""A driver that hangs says nothing of the run, and must not hold a check up."""


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
