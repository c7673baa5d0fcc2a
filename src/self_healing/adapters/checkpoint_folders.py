"""Checkpoint folders of a Hugging Face Trainer: which of them could be resumed from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
           "adapter_model.safetensors", "adapter_model.bin")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One `checkpoint-N` folder."""

    path: Path
    step: int

    def problem(self) -> str | None:
        """Return why it cannot be resumed from, or None; what its tensors hold is not looked at."""
        try:
            state = json.loads((self.path / "trainer_state.json").read_text())
        except (OSError, ValueError) as error:
            return f"trainer_state.json cannot be read: {error}"
        if not isinstance(state, dict) or state.get("global_step") != self.step:
            return "trainer_state.json is of another step"
        missing = [name for name in ("optimizer.pt", "scheduler.pt") if not (self.path / name).is_file()]
        if missing:
            return f"{' and '.join(missing)} missing"
        if not any((self.path / name).is_file() for name in WEIGHTS):
            return "no weights"
        return None


def checkpoints_in(output_dir: str | Path) -> list[CheckpointFolder]:
    """Return the checkpoint folders, newest first."""
    try:
        names = list(Path(output_dir).iterdir())
    except OSError:
        return []
    found = [CheckpointFolder(path, int(m.group(1))) for path in names if (m := _NAME.fullmatch(path.name))]
    return sorted((c for c in found if c.path.is_dir()), key=lambda c: -c.step)


def newest_usable(output_dir: str | Path, before_step: int | None) -> tuple[CheckpointFolder | None, list[str]]:
    """Return the newest usable checkpoint from before a step, and what was wrong with those passed over."""
    passed_over: list[str] = []
    for folder in checkpoints_in(output_dir):
        if before_step is not None and folder.step >= before_step:
            continue
        problem = folder.problem()
        if problem is None:
            return folder, passed_over
        passed_over.append(f"{folder.path.name}: {problem}")
    return None, passed_over
