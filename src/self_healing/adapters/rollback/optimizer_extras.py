"""What an optimizer keeps beside its state and its groups: slow weights, a wrapped optimizer, objects that hold tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tensors.copies import Copies


class OptimizerExtras:
    """All of it at one moment; of torch's own optimizers there is none."""

    def __init__(self, trainer: Any, copies: Copies) -> None:
        from ...tensors.held_tensors import Collector, HeldAttributes, OfTheTraining
        from ...tensors.state import OptimizerState

        models = [getattr(trainer, name, None) for name in ("model", "model_wrapped", "ref_model")]
        training = OfTheTraining(models)
        collector = Collector(training, copies)
        first, *wrapped = _all_in(trainer.optimizer)
        seen = {id(getattr(first, "state", None))}
        self._states: list[OptimizerState] = []
        for each in wrapped:
            if id(each.state) not in seen:
                seen.add(id(each.state))
                self._states.append(OptimizerState(each, copies=copies))
        # One without a state of its own is a front for another, such as accelerate's.
        own = [each for each in (first, *wrapped) if "state" in getattr(each, "__dict__", ()) and not _is_torchs(each)]
        self._held = [HeldAttributes(each, collector, _name(each), is_optimizers=True) for each in own]
        self._held += [
            HeldAttributes(thing, collector, f"{_name(each)}.{type(thing).__name__}", is_optimizers=True)
            for each in own
            for thing in _objects_in(each.state)
        ]
        self.beside = [type(each).__name__ for each in wrapped if not _is_same_state(each, first)]
        """What of it a process that comes after this one could not be given, by name."""
        self.beside += [
            f"{type(each).__name__}.{key}" for each in own for key in HeldAttributes.averages_in(each, training)
        ]
        self.left_out = [f"{type(each).__name__}.{key}" for each in own for key in _generators_in(each)]
        """What is not put back, by name."""

    def restore(self) -> None:
        """Put it back, after the optimizer itself."""
        for each in self._states:
            each.restore()
        for held in self._held:
            held.back()


def nbytes_in_optimizer(trainer: Any) -> int:
    """Return how much memory it takes in a state."""
    from ...tensors.held_tensors import Sizes

    sizes = Sizes()
    OptimizerExtras(trainer, sizes)
    return sizes.nbytes


def _all_in(optimizer: Any) -> list[Any]:
    """Return an optimizer and those that it wraps, the outermost first."""
    from torch.optim import Optimizer

    found, waiting = {}, [optimizer]
    while waiting:
        each = waiting.pop(0)
        if id(each) in found or not (each is optimizer or isinstance(each, Optimizer)):
            continue
        found[id(each)] = each
        for value in getattr(each, "__dict__", {}).values():
            waiting += value if type(value) in {list, tuple} else [value]
    return list(found.values())


def _name(optimizer: Any) -> str:
    return f"optimizer.{type(optimizer).__name__}"  # as all that is an optimizer's


def _is_torchs(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _is_same_state(optimizer: Any, other: Any) -> bool:
    return getattr(other, "state", None) is optimizer.state


def _objects_in(state: Any) -> Iterator[Any]:
    """Yield the objects in an optimizer's state that are neither tensors nor containers, each of them once."""
    from ...tensors.held_tensors import is_object

    seen: set[int] = set()
    for entries in state.values():
        for value in entries.values() if isinstance(entries, dict) else (entries,):
            if is_object(value) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _generators_in(optimizer: Any) -> Iterator[str]:
    import torch

    for key, value in vars(optimizer).items():
        if isinstance(value, torch.Generator) or type(value).__module__.startswith("numpy.random"):
            yield key
