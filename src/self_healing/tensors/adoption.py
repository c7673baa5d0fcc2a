"""A model and an optimizer take over what a process that is gone has left, by name and bit for bit.

Everything is compared before anything is written: what does not fit is named, and nothing was touched.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from ..core.containers import like
from .sharded import is_sharded, local_of, parts_of_whole, reshard, sharded_like
from .shared_tensors import Mark, Readable, read_tensor

_MOMENT = re.compile(r"optimizer\.([^/]+)/(.+)")
_GRADIENT = "gradient/"
_MOST_NAMED = 4


Marks = Mapping[str, Mark]


# -- modules ---------------------------------------------------------------------------------------------


def module_differences(
    module: nn.Module, marks: Marks, *, only_trainable: bool, others: Collection[str], prefix: str = ""
) -> list[str]:
    """Say what a module and the tensors of a state do not have in common.

    Args:
        module: What is to take the state over.
        marks: All tensors of the state.
        only_trainable: The state leaves frozen parameters out.
        others: How the names of tensors begin that belong to no module.
        prefix: How the names of this module's tensors begin.

    """
    own = {name: local_of(each) for name, each in _tensors(module, prefix, only_trainable=only_trainable)}
    found = [
        f"{name} has shape {_shape(tensor.shape)} and type {_type(tensor)}, and had {_shape(marks[name].shape)} and "
        f"{marks[name].dtype}"
        for name, tensor in own.items()
        if name in marks and (list(tensor.shape) != list(marks[name].shape) or _type(tensor) != marks[name].dtype)
    ]
    found += [f"{name} is new" for name in own if name not in marks]
    left = [name for name in marks if name.startswith(prefix) and not name.startswith(tuple(others))]
    known = own.keys() | {name for name, _ in _tensors(module, prefix, only_trainable=False)} if left else own.keys()
    found += [f"{name} is missing" for name in left if name not in known]
    return found + _moments_cut_otherwise(module, marks, prefix)


def _moments_cut_otherwise(module: nn.Module, marks: Marks, prefix: str) -> list[str]:
    """Name the moments of sharded parameters that are not cut as these are: how they were cut is not known."""
    sharded = {name: each for name, each in _tensors(module, prefix, only_trainable=False) if is_sharded(each)}
    moments = [(name, found[2]) for name in marks if sharded and (found := _MOMENT.fullmatch(name)) is not None]
    return [
        f"{name} is not cut as its parameter"
        for name, of in moments
        if of in sharded and marks[name].shape and list(marks[name].shape) != list(local_of(sharded[of]).shape)
    ]


def fill_module(module: nn.Module, state: Readable, *, prefix: str = "") -> None:
    """Put parameters, buffers and gradients of a state into a module that they fit."""
    marks = state.tensors
    reshard(module.modules())
    with torch.no_grad():
        for name, tensor in _tensors(module, prefix, only_trainable=False):
            if name in marks:
                local_of(tensor).copy_(read_tensor(state, name))
        for name, parameter in module.named_parameters():
            wanted = f"{_GRADIENT}{prefix}{name}"
            local = read_tensor(state, wanted).to(parameter.device) if wanted in marks else None
            parameter.grad = None if local is None else sharded_like(parameter, local)


def _tensors(module: nn.Module, prefix: str, *, only_trainable: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by the names they are captured under, one that has several names by each of them."""
    parts = parts_of_whole(module.modules())
    for name, listed in module.named_parameters():
        parameter = parts.get(listed, listed)
        if not isinstance(parameter, nn.UninitializedParameter) and (parameter.requires_grad or not only_trainable):
            yield prefix + name, parameter.detach()
    for path, each in module.named_modules():
        for key, buffer in each._buffers.items():  # noqa: SLF001  # those that are not saved too
            if buffer is not None:
                yield f"{prefix}{path}.{key}" if path else prefix + key, buffer


# -- optimizers ------------------------------------------------------------------------------------------


def optimizer_differences(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], groups: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Say where the groups of an optimizer differ from those of a state, which name their parameters."""
    own = [[names.get(p, "") for p in group["params"]] for group in optimizer.param_groups]
    if len(own) != len(groups):
        return [f"the optimizer has {len(own)} groups of parameters, and had {len(groups)}"]
    return [
        f"group {number} of the optimizer holds other parameters"
        for number, (mine, theirs) in enumerate(zip(own, groups, strict=True))
        if mine != theirs.get("params")
    ]


def fill_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], state: Readable, values: Mapping[str, Any]
) -> None:
    """Put moments and settings of a state into an optimizer, whose own state may not exist yet.

    Nothing is cast, unlike by `load_state_dict`, which gives moments the type of their parameter.
    """
    parameters = {name: parameter for parameter, name in names.items()}
    filled: dict[Tensor, Any] = defaultdict(dict)
    for name in state.tensors:
        moment = _MOMENT.fullmatch(name)
        if moment is not None and moment[2] in parameters:
            parameter = parameters[moment[2]]
            kept = tensor_for(state, name, parameter.device)
            # Counts of steps are the same everywhere.
            filled[parameter][moment[1]] = sharded_like(parameter, kept) if kept.dim() else kept
    for name, others in values["others"].items():
        if isinstance(others, Mapping):
            filled[parameters[name]].update(others)
        else:
            filled[parameters[name]] = others
    optimizer.state.clear()
    optimizer.state.update(filled)
    for group, entries in zip(optimizer.param_groups, values["groups"], strict=True):
        group.update((key, alike(group.get(key), value)) for key, value in entries.items() if key != "params")


def fill_scaler(scaler: torch.amp.GradScaler, values: Mapping[str, Any]) -> None:
    """Put scale and growth of a state into a scaler; what it notes of each optimizer belongs to one step."""
    own = vars(scaler)
    own.update((name, value) for name, value in values.items() if name in own and name not in _OF_A_STEP)


_OF_A_STEP = frozenset({"_per_optimizer_states", "_device"})


# -- anything --------------------------------------------------------------------------------------------


def tensor_for(state: Readable, name: str, device: torch.device) -> Tensor:
    """Return a tensor on the host where it was there, else on the given device."""
    values = read_tensor(state, name)
    return values if state.tensors[name].device == "cpu" else values.to(device)


def alike(own: Any, plain: Any) -> Any:
    """Return what came through JSON as the kind of container that is there now: a defaultdict, a deque."""
    if isinstance(own, dict) and isinstance(plain, Mapping):
        return like(own, [(key, alike(_example(own, key), value)) for key, value in plain.items()])
    if isinstance(own, list) and isinstance(plain, list) and len(own) == len(plain):
        return [alike(mine, theirs) for mine, theirs in zip(own, plain, strict=True)]
    if isinstance(own, deque) and isinstance(plain, list):
        return deque(plain, own.maxlen)
    if isinstance(own, tuple) and isinstance(plain, list):
        return tuple(plain)
    return plain


def _example(container: dict[Any, Any], key: object) -> Any:
    if key in container:
        return container[key]
    factory: Callable[[], Any] | None = getattr(container, "default_factory", None)
    return None if factory is None else factory()


def sampled_fingerprint(named: Iterable[tuple[str, Tensor]], each: int = 16) -> str:
    """Return what tensors are recognised by: names, shapes, types and a few elements of each, spread over it.

    Frozen weights are not part of a state: those that another process has loaded must be the same ones.
    """
    digest, samples = xxhash.xxh3_128(), defaultdict(list)
    for name, tensor in named:
        digest.update(f"{name}:{_type(tensor)}:{_shape(tensor.shape)};".encode())
        tensor = local_of(tensor)  # noqa: PLW2901  # what lies elsewhere is for others to recognise
        if tensor.numel() and tensor.layout is torch.strided:
            flat = tensor.detach().reshape(-1)
            samples[tensor.dtype, tensor.device].append(flat[:: max(1, flat.numel() // each)])
    for parts in samples.values():
        digest.update(torch.cat(parts).cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def told(differences: Sequence[str]) -> str:
    """Return the first few of many differences as one text."""
    more = len(differences) - _MOST_NAMED
    return "; ".join(differences[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "()"
