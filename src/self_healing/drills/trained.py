"""What two trainings are compared by."""

from __future__ import annotations

from typing import Any


def weights(trainer: Any) -> Any:
    """Return all parameters as one vector."""
    import torch

    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def same(a: Any, b: Any) -> bool:
    """Say whether two trainings have ended with the same weights, to the bit."""
    import torch

    return bool(torch.equal(weights(a), weights(b)))


def losses(trainer: Any) -> list[float]:
    """Return the losses that were logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def updates(trainer: Any) -> int:
    """Return the optimizer's own count of updates: a step that was skipped on the device is not in it."""
    counts = [state["step"] for state in trainer.optimizer.state.values() if "step" in state]
    return int(max((float(count) for count in counts), default=0.0))
