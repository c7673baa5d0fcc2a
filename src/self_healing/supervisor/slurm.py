"""Slurm: a job that has saved itself before its time was over is put into the queue again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

JOB_ID = "SLURM_JOB_ID"
MOST_S = 30.0


def requeued(environ: Mapping[str, str]) -> str:
    """Ask Slurm to queue this job again; return one sentence about it, never raises."""
    job, tool = environ[JOB_ID], shutil.which("scontrol", path=environ.get("PATH"))
    if tool is None:
        return f"Slurm job {job} is saved, but scontrol was not found to requeue it"
    try:
        done = subprocess.run(  # noqa: S603  # found on the user's own path
            [tool, "requeue", job],
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Slurm job {job} is saved, but could not be requeued: {error}"
    if done.returncode:
        return f"Slurm job {job} is saved, but could not be requeued: {done.stderr.strip()[:300]}"
    return f"Slurm job {job} is saved and requeued"
