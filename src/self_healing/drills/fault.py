"""The base class of a fault: planted into a trainer from outside, deterministic, one file each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from ..core.naming import kebab_case, summary_of

NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the ledger of a run must say that has met a fault; `heal drill` compares."""

    cause: tuple[str, ...]
    """Names under which the trouble may be found: the incident that led to the first deed. None where nothing may be found."""
    actions: tuple[str, ...]
    """Deeds that must be among those done; a word with `|` names several of which one is enough."""
    within: int = 1
    """Steps that may pass until it is found."""
    excess: float | None = 0.01
    """How far above the clean run's the evaluation loss may end, as a part of it; 0 means the same to the bit."""
    completes: bool = True
    """All planned updates are made; else the run must have been stopped in good order, with finite weights."""


@dataclass(kw_only=True)
class Fault:
    """A trouble that can be caused on purpose."""

    at_step: int = 20
    """The optimizer step, counted from 0, in which it happens."""

    is_transient: ClassVar[bool]
    """True where the same work done again is sound, so that a healed run must end as a clean one, to the bit."""
    needs_rollback: ClassVar[bool] = False
    """True where weights or moments are harmed: the work done again must begin with an earlier state."""
    steps_to_make_up: ClassVar[int] = 0
    """Optimizer steps a healed run has to do again because of it; none where training itself is not hit."""
    needs: ClassVar[Mapping[str, Any]] = NONE
    """Training arguments without which it would not happen."""
    stage: ClassVar[str] = "loop"
    """Where `heal drill` has it happen, one of `stages.STAGES`: a loop, one that goes on from disk, a command, ranks, a trainer."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Packages without which that stage cannot be had."""
    is_for_trainers: ClassVar[bool] = True
    """False where it needs what a trainer of transformers does not have, or more than one process."""
    expected: ClassVar[Expected]
    """What the ledger of a run that has met it must say."""
    hangs: ClassVar[bool] = False
    """True where a command that meets it is silent for good: only then is it soon taken to hang. Others may start slowly."""
    from_outside: ClassVar[bool] = False
    """True where it can be planted into whatever model a user's script trains."""

    @classmethod
    def name(cls) -> str:
        """Return the fault's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """Return the one sentence shown in lists."""
        return summary_of(cls)

    def plant(self, trainer: Any) -> None:
        """Put the fault into the trainer's model, data or surroundings; nothing where it harms what lies on disk."""

    def harm(self, folder: Path) -> None:
        """Do something to what a run has left on disk, before another process goes on with it."""

    def began_at(self) -> int | None:
        """Return the step in which it happens; None where only the data's order says."""
        return None if hasattr(self, "record") or hasattr(self, "records") else self.at_step


Spoil = Callable[[int, dict[str, Any], Any], Any]
"""Gets the step, the model's inputs and its output; returns another output, or None to leave it."""


def on_training_forward(trainer: Any, do: Spoil) -> None:
    """Call `do(step, inputs, output)` after each forward pass in training; what it returns is the output."""
    _on_forward(trainer, do, in_training=True)


def on_evaluation_forward(trainer: Any, do: Spoil) -> None:
    """Call `do(step, inputs, output)` after each forward pass in evaluation; what it returns is the output."""
    _on_forward(trainer, do, in_training=False)


def _on_forward(trainer: Any, do: Spoil, *, in_training: bool) -> None:
    import torch

    def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if module.training is not in_training or (in_training and not torch.is_grad_enabled()):
            return None  # answers are generated in training mode too
        inputs = kwargs if not args else {"input_ids": args[0], **kwargs}  # whatever the model calls it
        return do(int(trainer.state.global_step), inputs, output)

    trainer.model.register_forward_hook(hook, with_kwargs=True)


def once_before_forward(trainer: Any, at_step: int, harm: Callable[[Any], None]) -> None:
    """Call `harm(model)` before the first forward pass of one step; when the step is trained again it is left alone."""
    done: list[bool] = []

    def hook(module: Any, args: Any) -> None:
        if module.training and int(trainer.state.global_step) == at_step and not done:
            done.append(True)
            harm(module)

    trainer.model.register_forward_pre_hook(hook)


def signal_once(trainer: Any, at_step: int, number: int) -> None:
    """Have this process sent a signal in a step, and not again where another process trains that step anew."""
    mark = Path(trainer.args.output_dir) / "happened"

    def send(_model: Any) -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), number)

    once_before_forward(trainer, at_step, send)


def with_loss_times(output: Any, factor: float) -> Any:
    """Return a model output with whatever its trainer makes a loss of multiplied: TRL makes one of `log_probs`."""
    return _changed(output, lambda value: value * factor)


def with_gradient_times(output: Any, factor: float) -> Any:
    """Return a model output with the same values, whose gradient is multiplied."""
    return _changed(output, lambda value: value + (factor - 1.0) * (value - value.detach()))


def _changed(output: Any, change: Callable[[Any], Any]) -> Any:
    """Change what a loss is made of: named in an output, or the first of a tuple, or the output itself."""
    if isinstance(output, tuple) and not hasattr(output, "get"):
        return (change(output[0]), *output[1:])
    if not hasattr(output, "get"):
        return change(output)
    for name in [name for name in ("loss", "log_probs") if output.get(name) is not None] or ["logits"]:
        output[name] = change(output[name])
    return output


def rows_of(inputs: dict[str, Any]) -> Any:
    """Return what a model was called with first: its rows, whatever they are called."""
    return inputs["input_ids"] if "input_ids" in inputs else next(iter(inputs.values()))


def run_out_of_memory(tensor: Any, told: str) -> None:
    """Run out of memory: really, by a cap, where a tensor is on CUDA; elsewhere with what PyTorch would raise."""
    import torch

    if not (isinstance(tensor, torch.Tensor) and tensor.is_cuda):
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {told}")
    device = tensor.device
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved(device) + 2**24) / total), device)
    try:
        torch.empty(torch.cuda.memory_reserved(device) + 2**28, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def with_loss(output: Any, loss: Any) -> Any:
    """Return a model output with another loss."""
    output["loss"] = loss
    return output
