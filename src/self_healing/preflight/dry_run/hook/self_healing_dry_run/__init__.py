"""What is done inside a command that is tried out (`heal check --steps`), wherever it imports transformers, TRL or datasets.

- `limits`: training ends after a few steps, saves and pushes nothing, reports to nobody; what is saved all the same goes
  to a temporary folder;
- `rewards`: reward functions are called on a few rows, and what they say is noted;
- `swaps`: models and data sets are replaced by tiny ones that are known to be good (`--isolate`).

It runs in the user's own Python, so it imports the standard library only. What it sees goes to a file of events.
"""

from __future__ import annotations

from . import limits, swaps, telling
from .importing import patch_after_import


def begin() -> None:
    """Be ready for the modules that are to be changed; without orders nothing is."""
    if telling.orders():
        patch_after_import({**limits.PATCHES, **swaps.PATCHES})
