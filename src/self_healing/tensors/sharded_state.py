"""What trains on several ranks, by name, for a checkpoint: large tensors as each rank holds its part, all else as plain values.

The names do not depend on how many ranks there are, so that others can take the state over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..snapshots.sharded_index import MODEL, Entry
from .adoption import alike, optimizer_differences, told
from .sharded import is_sharded, parts_of_whole, reshard
from .sharded_files import dtype_of

_MOMENT = re.compile(r"optimizer\.([^/]+)/(.+)")


class CannotShareError(ValueError):
    """A state is not of a kind that these checkpoints can hold, or does not fit into what is there."""


@dataclass(slots=True)
class NamedState:
    """A model and an optimizer by name."""

    tensors: dict[str, Tensor]
    """The tensors themselves: what is written to them is written to the model."""
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Groups, which name their parameters, and what each parameter has besides large tensors."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Those of the tensors that every rank has for itself, such as running means: they may differ."""
    left_out: list[str] = field(default_factory=list)
    """Entries of the model's state that are no tensors."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside what replicates or compiles it, by whose names it is saved."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if inside is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> NamedState:
    """Name everything that a model and an optimizer hold; no other rank is asked.

    Raises:
        CannotShareError: moments are spread over ranks in another way than their parameter.

    """
    model = unwrapped(model)
    reshard(model.modules())
    entries = model.state_dict()
    state = NamedState({MODEL + name: value for name, value in entries.items() if isinstance(value, Tensor)})
    buffers = (MODEL + name for name, _ in model.named_buffers(remove_duplicate=False))
    state.buffers = {n: state.tensors[n] for n in buffers if n in state.tensors and not is_sharded(state.tensors[n])}
    state.left_out = [name for name, value in entries.items() if not isinstance(value, Tensor)]
    if optimizer is None:
        return state
    names = parameter_names(model, optimizer)
    others: dict[str, Any] = {}
    for parameter, entry in optimizer.state.items():
        name = names[parameter]
        small = {}
        for key, value in entry.items():
            if isinstance(value, Tensor) and is_sharded(value) and value.shape != parameter.shape:
                raise CannotShareError(f"{key} of {name} is not spread over ranks as the parameter is")
            is_large = isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
            if is_large:
                state.tensors[f"optimizer.{key}/{name}"] = value
            else:
                small[key] = value
        others[name] = small
    groups = [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]
    state.optimizer = {"groups": groups, "others": others}
    return state


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    """Return what each parameter is called; those of the optimizer that the model does not have, by their place."""
    model = unwrapped(model)
    parts = parts_of_whole(model.modules())
    names: dict[Tensor, str] = {parts.get(p, p): name for name, p in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            names.setdefault(parameter, f"#{number}.{place}")
    return names


@dataclass(slots=True)
class Taking:
    """A model and an optimizer that are about to take over what a checkpoint holds."""

    tensors: dict[str, Tensor]
    """To be read into, by name."""
    optimizer: torch.optim.Optimizer | None
    names: dict[Tensor, str]
    moments: dict[Tensor, dict[str, Tensor]]

    def fill(self, plain: Mapping[str, Any]) -> None:
        """Give the optimizer its moments, once they are read, and its settings."""
        if self.optimizer is None:
            return
        parameters = {name: parameter for parameter, name in self.names.items()}
        state: dict[Tensor, Any] = {}
        for name, small in plain["others"].items():
            parameter = parameters[name]
            state[parameter] = {**small, **self.moments.get(parameter, {})}
        self.optimizer.state.clear()
        self.optimizer.state.update(state)
        for group, entries in zip(self.optimizer.param_groups, plain["groups"], strict=True):
            group.update((key, alike(group.get(key), value)) for key, value in entries.items() if key != "params")

    def fill_buffers(self, own: Mapping[str, Tensor]) -> None:
        """Give the model the buffers that this rank had, in the place of those of the first one."""
        with torch.no_grad():
            for name, values in own.items():
                target = self.tensors.get(name)
                if target is not None and target.shape == values.shape:
                    target.copy_(values)


def taking(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    entries: Mapping[str, Entry],
    plain: Mapping[str, Any],
) -> Taking:
    """Compare a checkpoint with what is to take it over, and make room for moments that are not there yet.

    Raises:
        CannotShareError: it does not fit; the text says why, and nothing was touched.

    """
    model = unwrapped(model)
    targets = named_state(model).tensors
    differences = [f"{name.removeprefix(MODEL)} is new" for name in targets if name not in entries]
    differences += [
        f"{name.removeprefix(MODEL)} is missing" for name in entries if name.startswith(MODEL) and name not in targets
    ]
    differences += [
        f"{name.removeprefix(MODEL)} has shape {tuple(target.shape)} and {target.dtype}, and had {entries[name].size} and "
        f"{entries[name].dtype}"
        for name, target in targets.items()
        if name in entries and (tuple(target.shape) != entries[name].size or target.dtype != dtype_of(entries[name]))
    ]
    names: dict[Tensor, str] = {}
    moments: dict[Tensor, dict[str, Tensor]] = {}
    if optimizer is not None:
        names = parameter_names(model, optimizer)
        if not plain:
            raise CannotShareError("it holds no optimizer")
        differences += optimizer_differences(optimizer, names, plain["groups"])
        parameters = {name: parameter for parameter, name in names.items()}
        for name, entry in entries.items():
            found = _MOMENT.fullmatch(name)
            parameter = parameters.get(found[2]) if found is not None else None
            if found is None or parameter is None or tuple(parameter.shape) != entry.size:
                differences += [f"{name} belongs to no parameter"] if not name.startswith(MODEL) else []
                continue
            room = torch.empty_like(parameter.detach(), dtype=dtype_of(entry))
            targets[name] = moments.setdefault(parameter, {})[found[1]] = room
        differences += [f"{name} of the optimizer is missing" for name in plain["others"] if name not in parameters]
    if differences:
        raise CannotShareError(told(differences))
    return Taking(targets, optimizer, names, moments)
