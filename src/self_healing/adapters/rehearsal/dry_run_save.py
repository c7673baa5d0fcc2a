"""The save of a dry run: weights and optimizer into a scratch folder, read back and compared, then removed."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ActionFailed

if TYPE_CHECKING:
    from .dry_run import Rehearsal

logger = logging.getLogger("self_healing.dry_run")

PREFIX = "dry-run-"
"""Of scratch folders: nothing takes one for a checkpoint to resume from."""


def rehearse_save(rehearsal: Rehearsal) -> None:
    """Write what a checkpoint holds, note its size and read it back; the folder is removed whatever happens."""
    output_dir = Path(rehearsal.trainer.args.output_dir)
    made = _make(output_dir)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=output_dir))
        try:
            _write(rehearsal.trainer, scratch)
            rehearsal.report.checkpoint_bytes = sum(p.stat().st_size for p in scratch.rglob("*") if p.is_file())
            _compare(rehearsal.trainer, scratch)
        finally:
            shutil.rmtree(scratch, onerror=_could_not_remove)
    finally:
        for folder in made:  # innermost first; only what was not there
            folder.rmdir()


def _make(folder: Path) -> list[Path]:
    """Make a folder; return those that did not exist, innermost first."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return made


def _could_not_remove(_function: Any, path: str, reason: Any) -> None:
    logger.warning("the dry run could not remove %s: %s", path, reason[1])


def _write(trainer: Any, scratch: Path) -> None:
    import torch

    trainer.save_model(str(scratch), _internal_call=True)  # a call from outside may upload
    if trainer.args.save_only_model or trainer.optimizer is None:
        return
    torch.save(trainer.optimizer.state_dict(), scratch / "optimizer.pt")
    if trainer.lr_scheduler is not None:
        torch.save(trainer.lr_scheduler.state_dict(), scratch / "scheduler.pt")


def _compare(trainer: Any, scratch: Path) -> None:
    """Read everything back as a resume would, and compare it bit by bit where the names are the same."""
    import torch

    held = trainer.model.state_dict()
    for path in sorted(scratch.glob("*.safetensors")):
        _compare_weights(path, held)
    for path in sorted(scratch.glob("*.bin")):
        if path.name != "training_args.bin":
            for name, values in torch.load(path, map_location="cpu", weights_only=True).items():
                _must_equal(name, values, held.get(name))
    optimizer = scratch / "optimizer.pt"
    if optimizer.exists():
        saved = torch.load(optimizer, map_location="cpu", weights_only=True)["state"]
        for key, state in trainer.optimizer.state_dict()["state"].items():
            for name, values in state.items():
                if isinstance(values, torch.Tensor):
                    _must_equal(f"optimizer state {key}.{name}", saved[key][name], values)


def _compare_weights(path: Path, held: dict[str, Any]) -> None:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:  # tensor by tensor: there may be no memory for a second model
        for name in file.keys():  # noqa: SIM118  # not a mapping
            _must_equal(name, file.get_tensor(name), held.get(name))


def _must_equal(name: str, saved: Any, held: Any) -> None:
    if held is None or held.shape != saved.shape or held.dtype != saved.dtype:
        return  # saved under another name or type, as adapters and quantised weights are: readable is all that can be said
    kept = held.detach().cpu()
    if not bool(((saved == kept) | ((saved != saved) & (kept != kept))).all()):  # noqa: PLR0124  # NaN equals NaN here
        raise ActionFailed(f"{name} is not what was saved when read back")
