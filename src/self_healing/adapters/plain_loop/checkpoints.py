"""Checkpoints of a loop, in the layout that everything here reads: whatever a run is resumed by finds them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # only its error
from typing import Any

import torch

from ...snapshots.checkpoint_structure import PLACE
from ...snapshots.file_checks import numbers_allowed, read_place, why_refused
from ...snapshots.manifest import BESIDE, STATE
from ...snapshots.manifest import FILE_NAME as MANIFEST
from ...snapshots.resume import written_s
from ...snapshots.unfinished import writing
from ...tensors.random_state import RandomState
from ..rollback.training_files import write_training_files
from .stand_in import LoopStandIn

RANDOM = "rng_state.pth"
ALSO = "also.pt"
"""What the user has given besides the model and its optimizer."""


class CheckpointDoesNotFitError(ValueError):
    """A checkpoint is of another loop."""


def write_checkpoint(
    stand_in: LoopStandIn, folder: Path, place: Mapping[str, object] | None, random: RandomState, also: list[Any]
) -> None:
    """Write the state of this moment; the folder gets its name when everything is in it.

    Raises:
        OSError: it cannot be written.

    """
    with writing(folder) as unfinished:
        for name in _written_first(folder):
            shutil.copy2(folder / name, unfinished / name)
        stand_in._save(str(unfinished), stand_in.model.state_dict())  # noqa: SLF001  # the stand-in's own
        scheduler, scaler = stand_in.lr_scheduler, getattr(stand_in.accelerator, "scaler", None)
        write_training_files(
            unfinished,
            optimizer=stand_in.optimizer.state_dict(),
            scheduler=None if scheduler is None else scheduler.state_dict(),
            scaler=None if scaler is None else scaler.state_dict(),
        )
        write_place(unfinished, place, random, also)
        stand_in.state.save_to_json(str(unfinished / "trainer_state.json"))


def _written_first(folder: Path) -> set[str]:
    """Return what was put into a folder for the checkpoint that is about to be written: its mark too, where it is sick."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there <= BESIDE | {MANIFEST}:
        return there
    # Beside other files a manifest tells of an older checkpoint, and so does what is not newer than it.
    older_s = written_s(folder) if STATE in there else 0.0
    return {name for name in there & BESIDE if (folder / name).stat().st_mtime > older_s}


def write_place(folder: Path, place: Mapping[str, object] | None, random: RandomState, also: list[Any]) -> None:
    """Write what a loop needs besides its model and optimizer: where data and random generators stood, and what is the user's.

    Raises:
        OSError: it cannot be written.

    """
    if also:
        torch.save(also, folder / ALSO)
    torch.save(random.state_dict(), folder / RANDOM)
    (folder / PLACE).write_text(json.dumps(place), encoding="ascii")


def load_checkpoint(
    stand_in: LoopStandIn, folder: Path, also: tuple[Any, ...]
) -> tuple[dict[str, Any] | None, RandomState]:
    """Load a checkpoint into the loop; return where its data stood and where the random generators did.

    Raises:
        CheckpointDoesNotFitError: it is of another model or loop, or damaged; the text says in what it differs.

    """
    device = stand_in.args.device
    try:
        stand_in.model.load_state_dict(_load(folder / "pytorch_model.bin", device))
        stand_in.optimizer.load_state_dict(_load(folder / "optimizer.pt", device))
        if stand_in.lr_scheduler is not None:
            stand_in.lr_scheduler.load_state_dict(_load(folder / "scheduler.pt", "cpu"))
        scaler = getattr(stand_in.accelerator, "scaler", None)
        if scaler is not None and (folder / "scaler.pt").exists():
            scaler.load_state_dict(_load(folder / "scaler.pt", "cpu"))
        kept = _load(folder / ALSO, device) if also else []
        if len(kept) != len(also):
            raise CheckpointDoesNotFitError(
                f"it holds {len(kept)} things besides the model, and also= names {len(also)}"
            )
        for thing, state in zip(also, kept, strict=True):
            thing.load_state_dict(state)
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        step, path = int(state["global_step"]), folder / PLACE
        place = read_place(path) if path.exists() else None
        random = RandomState.from_state(_load(folder / RANDOM, "cpu"))
    except (RuntimeError, ValueError, KeyError, TypeError, FileNotFoundError) as error:
        if isinstance(error, CheckpointDoesNotFitError):
            raise
        raise CheckpointDoesNotFitError(f"{folder.name} does not fit this loop: {error}") from error
    stand_in.state.global_step = step
    return place, random


def _load(path: Path, device: Any) -> Any:
    try:
        with numbers_allowed():
            return torch.load(path, map_location=device, weights_only=True)
    except UnpicklingError as error:
        raise CheckpointDoesNotFitError(why_refused(path, error)) from error
