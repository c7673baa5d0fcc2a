"""What a capture holds, read from host memory alone: neither what was captured nor any device is touched.

Putting a state back writes to the tensors it was taken from. After a device has failed every such write fails too, and
while a step runs in another thread it would be a crime; what is already on the host can be written to a file all the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .host_layout import Place
from .host_slot import HostCopy
from .sharded import is_sharded
from .skip import innermost
from .state import PLAIN, KeptTensor, ModuleState, OptimizerState, ScalerState, StateDict, _again, _rebuilt


class NotOnTheHostError(RuntimeError):
    """Something that is needed was never copied to host memory."""


class Apart:
    """Reads captures; tensors that were one are one again, each in a storage of its own.

    Whoever saves a view saves all of its storage, and a slot of host memory is one storage for a whole state. Nothing is
    copied: the storages are parts of the slot's memory, and keep it alive.
    """

    def __init__(self) -> None:
        self._known: dict[Place, Tensor] = {}

    def of(self, kept: Any) -> Any:
        """Return what `keep` was given, in new containers, with the values that tensors had."""
        if type(kept) in PLAIN:
            return kept
        return (
            self._values(kept) if isinstance(kept, KeptTensor) else _rebuilt(kept, lambda inner, _place: self.of(inner))
        )

    def module(self, state: ModuleState, model: nn.Module) -> dict[str, Any]:
        """Return the model's `state_dict`; what was not captured is the model's own tensor, on the device it is on."""
        copies, contents = state._copies, state._contents  # noqa: SLF001  # this is the other half of that class
        parameters = {id(parameter): self.of(kept.again(copies)) for parameter, kept in contents.values}
        buffers = {
            (id(module), name): self.of(_again(kept, copies))
            for module, named in zip(contents.modules, contents.buffers, strict=True)
            for name, kept in named.items()
        }
        paths = {
            f"{path}.{name}".lstrip("."): buffers[id(module), name]
            for path, module in model.named_modules(remove_duplicate=False)
            for name in module._buffers  # noqa: SLF001  # the only list of them
            if (id(module), name) in buffers
        }
        extra = {name: self.of(kept) for name, kept in state.extra.by_name(model).items()}
        found: dict[str, Any] = {}
        for name, value in model.state_dict(keep_vars=True).items():
            found[name] = extra[name] if name in extra else parameters.get(id(value), paths.get(name, value))
        return found

    def optimizer(self, state: OptimizerState) -> dict[str, Any]:
        """Return what `state_dict` would have returned."""
        copies = state._copies  # noqa: SLF001
        entries = {parameter: self.of(_again(kept, copies)) for parameter, kept in state._contents.kept}  # noqa: SLF001
        for parameter, others in state._others.items():  # noqa: SLF001
            values = self.of(others)
            entries[parameter] = {**entries[parameter], **values} if isinstance(values, dict) else values
        groups = [
            {key: list(value) if key == "params" else self.of(value) for key, value in kept.items()}
            for _, kept in state._groups  # noqa: SLF001
        ]
        # Optimizers may write their state in a form of their own: theirs is asked, with what was set aside in its place.
        like = as_it_was(innermost(state._optimizer), state=entries, param_groups=groups)  # noqa: SLF001
        state_dict: dict[str, Any] = like.state_dict()
        return state_dict

    def scaler(self, state: ScalerState) -> dict[str, Any]:
        """Return what `state_dict` would have returned."""
        was: dict[str, Any] = as_it_was(state._scaler, **self.of(state._kept)).state_dict()  # noqa: SLF001
        return was

    def state_dict(self, state: StateDict) -> Any:
        """Return what `state_dict` had returned."""
        return self.of(state._kept)  # noqa: SLF001

    def _values(self, kept: KeptTensor) -> Tensor:
        copy = kept.copy
        if is_sharded(kept.tensor):  # a part of it would pass for the whole
            raise NotOnTheHostError(f"this process holds a part of a tensor of shape {tuple(kept.tensor.shape)} only")
        if not isinstance(copy, HostCopy):
            if copy.values.device.type != "cpu":
                raise NotOnTheHostError(f"a tensor of shape {tuple(copy.values.shape)} was copied on its device only")
            return copy.values
        assert copy.copies is not None, "read without saying of which capture"
        copy.copies.assert_kept()
        if copy.place not in self._known:
            self._known[copy.place] = _own_storage(copy.place)
        return self._known[copy.place]


def as_it_was(thing: Any, **attributes: Any) -> Any:
    """Return another thing of the same class with the same attributes, but for some."""
    other = object.__new__(type(thing))
    vars(other).update({**vars(thing), **attributes})
    return other


def _own_storage(place: Place) -> Tensor:
    values = place.values()
    if place.block is None:
        return values
    storage = place.block.bytes.untyped_storage()[place.offset : place.offset + place.nbytes]
    return torch.empty(0, dtype=place.dtype).set_(storage, 0, values.shape, values.stride())
