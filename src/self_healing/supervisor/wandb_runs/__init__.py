"""Weights & Biases around a supervised command: runs of attempts are continued, or deleted where they were started over.

    lines of the output --(lines)--> what wandb says of its runs
    folders under the child's working directory --(folders)--> which runs an attempt has begun
    both --(runs)--> which run is continued, which is kept and why, which the service is asked about
    the service --(asking, service)--> deleted, or why not

A run is deleted only where everything speaks for it; whatever is not known keeps it. wandb itself is imported in one place,
`service`, which is a process of its own: it may hang, prompt or phone without the supervisor noticing more than a time limit.
"""

from __future__ import annotations

from .runs import WandbRuns

__all__ = ["WandbRuns"]
