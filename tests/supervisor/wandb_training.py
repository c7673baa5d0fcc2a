"""A training that reports to wandb and ends as it is told: `wandb_training.py 0`, `wandb_training.py 3` or `... kill`."""

from __future__ import annotations

import os
import signal
import sys

import wandb

run = wandb.init()
run.log({"loss": 1.0})
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
