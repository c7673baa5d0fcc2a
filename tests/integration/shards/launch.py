"""Runs cases on several real ranks and has each write down what it found: `launch.py FOLDER RANKS CASE...`.

The ranks are forked from one process that has imported torch, so that a launch takes seconds.
"""

from __future__ import annotations

import sys

import checkpoints  # noqa: F401
import failures  # noqa: F401
import gradients  # noqa: F401
import states  # noqa: F401
import torch.multiprocessing as mp
from harness import run

if __name__ == "__main__":
    folder, world, *names = sys.argv[1:]
    mp.start_processes(run, (folder, int(world), names), nprocs=int(world), start_method="fork")
