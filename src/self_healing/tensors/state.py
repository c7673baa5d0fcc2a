"""Set the state of what trains aside and put it back bit for bit: modules, optimizers, schedulers, scalers, randomness.

Everything is put back in place: a parameter, a gradient or a moment is the same tensor object afterwards, so that tied
weights stay tied and optimizers keep pointing at what they update. A capture can be restored more than once.
"""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .random_state import RandomState


class Captured(Protocol):
    """Something set aside that can be put back."""

    def restore(self) -> None:
        """Put it back."""


def capture(thing: Any, *, to_cpu: bool = False, only_trainable: bool = False) -> Captured:
    """Set the state of a thing aside; `RandomState` stands for the random generators, a list for all it holds.

    Copies stay on the device of what they copy, or go to the CPU. With `only_trainable` the values of a module's
    frozen parameters are not copied, which is what makes a capture of a LoRA model small.
    """
    if isinstance(thing, list | tuple):
        return AllOf([capture(each, to_cpu=to_cpu, only_trainable=only_trainable) for each in thing])
    if isinstance(thing, nn.Module):
        return ModuleState(thing, to_cpu=to_cpu, only_trainable=only_trainable)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerState(thing, to_cpu=to_cpu)
    if isinstance(thing, torch.amp.GradScaler):
        return ScalerState(thing)
    if thing is RandomState:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else None
        return RandomState.capture(devices)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return StateDict(thing, to_cpu=to_cpu)
    raise TypeError(f"{type(thing).__name__} has no state that could be captured")


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """Several captures, put back in their order."""

    parts: list[Captured]

    def restore(self) -> None:
        """Put all of them back."""
        for part in self.parts:
            part.restore()


# -- tensors inside of anything --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class KeptTensor:
    """A tensor and the values it had."""

    tensor: Tensor
    values: Tensor

    @classmethod
    def of(cls, tensor: Tensor, *, to_cpu: bool) -> KeptTensor:
        """Copy the values."""
        tensor = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
        values = tensor.detach()
        return cls(tensor, values.to("cpu", copy=True) if to_cpu else values.clone())

    def back(self) -> Tensor:
        """Return the same tensor with its former values; a copy where many elements share one place in memory."""
        if any(stride == 0 and size > 1 for stride, size in zip(self.tensor.stride(), self.tensor.shape, strict=True)):
            same = torch.equal(self.tensor, self.values.to(self.tensor.device))
            return self.tensor if same else self.values.to(self.tensor.device, copy=True)
        with torch.no_grad():
            self.tensor.detach().copy_(self.values)
        return self.tensor


def keep(value: Any, *, to_cpu: bool = False) -> Any:
    """Return containers copied all the way down with their tensors kept; other objects are kept by reference."""
    if isinstance(value, Tensor):
        return KeptTensor.of(value, to_cpu=to_cpu)
    return _rebuilt(value, lambda inner: keep(inner, to_cpu=to_cpu))


def give_back(kept: Any) -> Any:
    """Return what `keep` was given: new containers of the same kinds, the same tensors with their former values."""
    return kept.back() if isinstance(kept, KeptTensor) else _rebuilt(kept, give_back)


def _rebuilt(value: Any, of: Any) -> Any:
    if isinstance(value, dict):
        empty = copy.copy(value)  # keeps the kind: a defaultdict its factory
        empty.clear()
        empty.update((key, of(inner)) for key, inner in value.items())
        return empty
    if isinstance(value, UserDict):  # what tokenizers return
        other = copy.copy(value)
        other.data = of(value.data)
        return other
    if isinstance(value, list):
        filled = copy.copy(value)
        filled[:] = [of(inner) for inner in value]
        return filled
    if isinstance(value, deque):
        return deque((of(inner) for inner in value), value.maxlen)
    if isinstance(value, tuple):
        inner = [of(each) for each in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if isinstance(value, set):
        return set(value)
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value


# -- the kinds of things ---------------------------------------------------------------------------------


class ModuleState:
    """Parameters, gradients, buffers and modes of a module and all below it."""

    def __init__(self, module: nn.Module, *, to_cpu: bool = False, only_trainable: bool = False) -> None:
        self._modes = [(each, each.training) for each in module.modules()]
        parameters = [p for p in module.parameters() if not isinstance(p, nn.UninitializedParameter)]
        self._flags = [(p, p.requires_grad) for p in parameters]
        self._values = [
            (p, KeptTensor.of(p.data, to_cpu=to_cpu)) for p in parameters if p.requires_grad or not only_trainable
        ]
        self._gradients = [
            (p, None if p.grad is None else KeptTensor.of(p.grad, to_cpu=to_cpu)) for p in parameters
        ]  # fmt: skip
        self._buffers = [(each, keep(dict(each._buffers), to_cpu=to_cpu)) for each in module.modules()]  # noqa: SLF001

    def restore(self) -> None:
        """Put them back in place."""
        for parameter, kept in self._values:
            values = kept.back()
            if parameter.data_ptr() != values.data_ptr() or parameter.dtype != values.dtype:
                parameter.data = values  # was moved or cast meanwhile
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.back()
        for module, buffers in self._buffers:
            own = module._buffers  # noqa: SLF001  # the only way to a buffer that was replaced
            own.clear()
            own.update(give_back(buffers))
        for parameter, flag in self._flags:
            parameter.requires_grad_(flag)
        for module, mode in self._modes:
            module.training = mode

    def nbytes(self) -> int:
        """Return how much memory the copies of parameters and gradients take."""
        kept: Iterable[KeptTensor | None] = (each for _, each in (*self._values, *self._gradients))
        return sum(each.values.numel() * each.values.element_size() for each in kept if each is not None)


class OptimizerState:
    """State and groups of an optimizer, also where it has no state yet."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, to_cpu: bool = False) -> None:
        self._optimizer = optimizer
        self._state = {parameter: keep(state, to_cpu=to_cpu) for parameter, state in optimizer.state.items()}
        self._groups = [(group, self._kept(group, to_cpu)) for group in optimizer.param_groups]

    @staticmethod
    def _kept(group: Mapping[str, Any], to_cpu: bool) -> dict[str, Any]:
        # The parameters are only named here: their values are the module's.
        return {key: list(value) if key == "params" else keep(value, to_cpu=to_cpu) for key, value in group.items()}

    def restore(self) -> None:
        """Put them back; groups are the same dictionaries again."""
        state = self._optimizer.state
        state.clear()
        for parameter, kept in self._state.items():
            state[parameter] = give_back(kept)
        for group, entries in self._groups:
            group.clear()
            group.update((key, list(kept) if key == "params" else give_back(kept)) for key, kept in entries.items())
        self._optimizer.param_groups[:] = [group for group, _ in self._groups]


class ScalerState:
    """A gradient scaler with its scale, its growth, and how far it had got with each optimizer."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        # Not its state_dict: that leaves out which optimizers were unscaled, and waits for the device.
        self._kept = keep(vars(scaler))

    def restore(self) -> None:
        """Put it back."""
        own = vars(self._scaler)
        own.clear()
        own.update(give_back(self._kept))


class StateDict:
    """Anything with `state_dict` and `load_state_dict`, such as a learning rate scheduler."""

    def __init__(self, thing: Any, *, to_cpu: bool = False) -> None:
        self._thing = thing
        self._kept = keep(thing.state_dict(), to_cpu=to_cpu)

    def restore(self) -> None:
        """Load it."""
        self._thing.load_state_dict(give_back(self._kept))
