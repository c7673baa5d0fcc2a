"""A job whose attempts are real processes, and whose output is shown to `WandbRuns`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from self_healing.supervisor.wandb_runs import WandbRuns

CHILD = Path(__file__).with_name("wandb_child.py")
ROCKET = "\U0001f680"


class Job:
    def __init__(self, cwd, environ=None, **settings):
        self.cwd = cwd
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.environ |= {"HOME": str(cwd / "home"), "NETRC": str(cwd / "netrc")} | (environ or {})
        (cwd / "home" / ".config" / "wandb").mkdir(parents=True, exist_ok=True)  # which older versions make
        self.runs = WandbRuns(**settings)
        self.count = 0
        self.seen = []

    def attempt(
        self, run_id=None, page=None, *, folder="", lines=(), resumes=False, command=(), ended=True, silent=False
    ):
        """Run an attempt: the lines and the folder are those of real runs unless others are wanted."""
        self.count += 1
        extra = self.runs.environ_for_next(resumes)
        folders = (
            [folder or f"wandb/run-20240115_1030{self.count:02}-{run_id}"] if run_id and folder is not None else []
        )
        printed = [f"wandb: Run data is saved locally in {each}" for each in folders if not silent]
        printed += [f"wandb: {ROCKET} View run at {page}"] if page else []
        told = json.dumps({"folders": folders, "lines": [*printed, *lines]})
        environ = self.environ | extra
        self.runs.attempt_begins(self.count, self.cwd, environ, command)
        done = subprocess.run(
            [sys.executable, str(CHILD), told],
            cwd=self.cwd, env=environ, capture_output=True, check=True, text=True, encoding="utf-8",
        )  # fmt: skip
        self.seen += [self.runs.see(line) for line in done.stdout.splitlines()]
        if ended:
            self.runs.attempt_ended()
        return extra

    def end(self, succeeded=True):
        return self.runs.delete_started_over(succeeded)
