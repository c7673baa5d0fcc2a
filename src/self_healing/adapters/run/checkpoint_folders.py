"""Checkpoint folders of a Hugging Face Trainer: which of them could be resumed from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...snapshots.resume import choose


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One `checkpoint-N` folder."""

    path: Path
    step: int


def newest_usable(
    output_dir: str | Path, before_step: int | None, *, thorough: bool = False
) -> tuple[CheckpointFolder | None, list[str]]:
    """Return the newest usable checkpoint from before a step, and what was wrong with those passed over.

    Without `thorough` only sizes and structure are looked at, which costs nothing on the training thread; whoever
    goes on from what is returned wants its checksums compared too.
    """
    chosen = choose(output_dir, before_step, thorough=thorough)
    told = [str(passed) for passed in chosen.passed_over]
    if chosen.path is None or chosen.step is None:
        return None, told
    return CheckpointFolder(chosen.path, chosen.step), told
