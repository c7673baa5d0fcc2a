"""Checkpoints of a loop, in the layout that everything here reads: whatever a run is resumed by finds them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...tensors.random_state import RandomState
from .stand_in import LoopStandIn

PLACE = "healing_place.json"
"""Where the data stood, beside what every checkpoint has."""
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
    unfinished = folder.with_name(f".unfinished-{folder.name}-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        if folder.is_dir():  # what was written beside it first
            for path in folder.iterdir():
                shutil.copy2(path, unfinished / path.name)
        stand_in._save(str(unfinished), stand_in.model.state_dict())  # noqa: SLF001  # the stand-in's own
        torch.save(stand_in.optimizer.state_dict(), unfinished / "optimizer.pt")
        scheduler = {} if stand_in.lr_scheduler is None else stand_in.lr_scheduler.state_dict()
        torch.save(scheduler, unfinished / "scheduler.pt")
        scaler = getattr(stand_in.accelerator, "scaler", None)
        if scaler is not None:
            torch.save(scaler.state_dict(), unfinished / "scaler.pt")
        write_place(unfinished, place, random, also)
        stand_in.state.save_to_json(str(unfinished / "trainer_state.json"))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


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
        CheckpointDoesNotFitError: it is of another model or loop; the text says in what it differs.

    """
    device = stand_in.args.device
    weights = _load(folder / "pytorch_model.bin", device)
    try:
        stand_in.model.load_state_dict(weights)
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
    except (RuntimeError, ValueError, KeyError, FileNotFoundError) as error:
        if isinstance(error, CheckpointDoesNotFitError):
            raise
        raise CheckpointDoesNotFitError(f"{folder.name} does not fit this loop: {error}") from error
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    stand_in.state.global_step = int(state["global_step"])
    path = folder / PLACE
    place = json.loads(path.read_text(encoding="ascii")) if path.exists() else None
    return place, RandomState.from_state(_load(folder / RANDOM, "cpu"))


def _load(path: Path, device: Any) -> Any:
    return torch.load(path, map_location=device, weights_only=True)
