"""What is known of an attempt that was killed besides its ledger, whose last second may be missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...core.run_directory import healing_folder
from ...snapshots.resume import choose
from ...snapshots.shared_folder import run_name
from ...snapshots.shared_reader import newest_step
from ..data.quarantine import BadRecord, read_list
from .last_attempt import LastAttempt

CLOCKS_DIFFER_S = 2.0
"""How far the clock of a file system may be behind that of the process."""


def reached_at_least(killed: LastAttempt, args: Any) -> int:
    """Return the newest step that an attempt is known to have reached.

    What was written before the last line of the ledger tells nothing more: it may be of steps that were undone.
    """
    since_s = max(killed.run_began_s, killed.last_s - CLOCKS_DIFFER_S)
    on_disk = choose(args.output_dir, thorough=False, since_s=since_s).step
    shared = newest_step(run_name(args.output_dir, int(args.process_index)), since_s)
    return max(killed.last_step, on_disk or 0, shared or 0)


def listed_since(killed: LastAttempt, output_dir: str | os.PathLike[str]) -> list[BadRecord]:
    """Return the records on lists that the run has written to; a list that is older is another run's."""
    found: list[BadRecord] = []
    for path in sorted(Path(healing_folder(output_dir)).glob("quarantine*.jsonl")):
        if path.stat().st_mtime >= killed.run_began_s - CLOCKS_DIFFER_S:
            found += read_list(path)
    return found
