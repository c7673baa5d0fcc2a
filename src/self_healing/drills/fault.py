"""The base class of a fault: planted into a trainer from outside, deterministic, one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ..core.naming import kebab_case, summary_of

NONE: Mapping[str, Any] = MappingProxyType({})


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

    @classmethod
    def name(cls) -> str:
        """Return the fault's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """Return the one sentence shown in lists."""
        return summary_of(cls)

    def plant(self, trainer: Any) -> None:
        """Put the fault into the trainer's model, data or surroundings."""
        raise NotImplementedError


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
        inputs = kwargs if not args else {"input_ids": args[0], **kwargs}
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


def with_loss_times(output: Any, factor: float) -> Any:
    """Return a model output with whatever its trainer makes a loss of multiplied: TRL makes one of `log_probs`."""
    for name in _made_of(output):
        output[name] = output[name] * factor
    return output


def with_gradient_times(output: Any, factor: float) -> Any:
    """Return a model output with the same values, whose gradient is multiplied."""
    for name in _made_of(output):
        value = output[name]
        output[name] = value + (factor - 1.0) * (value - value.detach())
    return output


def _made_of(output: Any) -> list[str]:
    return [name for name in ("loss", "log_probs") if output.get(name) is not None] or ["logits"]


def with_loss(output: Any, loss: Any) -> Any:
    """Return a model output with another loss."""
    output["loss"] = loss
    return output
