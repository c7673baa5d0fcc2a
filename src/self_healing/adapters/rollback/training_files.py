"""The files of a checkpoint that hold what its optimizer, its schedule and its scaler know, whoever writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_training_files(
    folder: Path,
    *,
    optimizer: Mapping[str, object],
    scheduler: Mapping[str, object] | None,
    scaler: Mapping[str, object] | None,
) -> None:
    """Write them; a run without a schedule leaves an empty one, for a file that is missing is one that was lost.

    Raises:
        OSError: they cannot be written.

    """
    import torch

    torch.save(optimizer, folder / "optimizer.pt")
    torch.save({} if scheduler is None else scheduler, folder / "scheduler.pt")
    if scaler is not None:
        torch.save(scaler, folder / "scaler.pt")
