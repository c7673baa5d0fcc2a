"""Gradient norms and scaling in few kernels, without ever waiting for the device.

Everything agrees bit for bit with `torch.nn.utils.clip_grad_norm_`, so that a run in which nothing happens stays the
run it would have been. Gradients in half precision are measured in single precision (a float16 norm overflows at
65504), and the number torch would have used is kept beside it. Sparse gradients, which torch cannot clip, are measured by
the rows that they hold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from .finite_at_first import floating, floating_buffers
from .sharded import Sharded, is_sharded, local_of, parts_of_whole

HALF = (torch.float16, torch.bfloat16)

SMALLEST = 1e-6
"""What torch adds to a norm before it divides by it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Gradients that share a mesh, a device and a dtype."""

    tensors: list[Tensor]
    """This process's share of them; it lies in the memory of the gradients themselves."""
    positions: Sequence[int]
    norms: Tensor
    """One-dimensional, single precision or better."""
    as_torch: Tensor
    """The same in the dtype in which torch computes them."""


class Norms:
    """The norms of one set of gradients, from one pass over them."""

    __slots__ = ("_parts", "as_torch", "total")

    def __init__(self, grads: Sequence[Tensor], device: torch.device | None = None) -> None:
        """Measure the gradients; the results lie on the first one's device, or on `device` where there are none."""
        self._parts = _parts(grads)
        if grads:
            device = grads[0].device
        self.total = _together([part.norms for part in self._parts], device)
        """Norm of all gradients, 0-dimensional, single precision or better."""
        same = all(part.as_torch is part.norms for part in self._parts)
        self.as_torch = self.total if same else _together([part.as_torch for part in self._parts], device)
        """The same number with the rounding torch gives it: what a stock run would clip by."""

    @property
    def each(self) -> Tensor:
        """The norms of the single gradients, one-dimensional, in the order in which they were given."""
        device = self.total.device
        if not self._parts:
            return torch.zeros(0, device=device)
        if len(self._parts) == 1:
            return self._parts[0].norms
        scattered: list[tuple[int, Tensor]] = []
        for part in self._parts:
            scattered += zip(part.positions, part.norms.to(device).unbind(), strict=True)
        return torch.stack([norm for _, norm in sorted(scattered, key=lambda item: item[0])])

    @property
    def only_part(self) -> list[Tensor] | None:
        """This process's share of the gradients, in their order, where all have one device, dtype and mesh."""
        return self._parts[0].tensors if len(self._parts) == 1 else None

    def scale_(self, coefficient: Tensor) -> None:
        """Multiply all gradients in place by a 0-dimensional tensor."""
        for part in self._parts:
            # Not non_blocking: a coefficient on its way to the host would be read before it arrived.
            torch._foreach_mul_(part.tensors, coefficient.to(part.tensors[0].device))

    def scale_each_(self, coefficients: Tensor) -> None:
        """Multiply each gradient in place by its own element of a one-dimensional tensor."""
        for part in self._parts:
            own = coefficients.to(part.tensors[0].device).unbind()
            torch._foreach_mul_(part.tensors, [own[i] for i in part.positions])


@torch.no_grad()
def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients as one 0-dimensional tensor; zero where there are none."""
    return Norms(grads).total


@torch.no_grad()
def per_tensor_norms(grads: Sequence[Tensor]) -> Tensor:
    """Return the norm of each gradient, as a one-dimensional tensor."""
    return Norms(grads).each


@torch.no_grad()
def state_norms(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, besides: Mapping[str, Tensor] | None = None
) -> dict[str, float]:
    """Return the norms of what trains, of buffers and of the optimizer's state, named as in a snapshot. Waits for the device.

    `besides` is what else belongs to a snapshot, by the names that it has there.

    Of what is sharded they are those of this process's part, as in a snapshot: nobody else is asked.
    """
    parts = parts_of_whole(model.modules())
    names: dict[Tensor, str] = {parts.get(parameter, parameter): name for name, parameter in model.named_parameters()}
    found = {name: parameter.detach() for parameter, name in names.items() if parameter.requires_grad}
    for parameter, state in optimizer.state.items():
        for key, value in state.items() if parameter in names and isinstance(state, dict) else ():
            if isinstance(value, Tensor) and value.dim() > 0:
                found[f"optimizer.{key}/{names[parameter]}"] = value
    found = {**dict(floating((*found.items(), *(besides or {}).items()))), **dict(floating_buffers(model))}
    return dict(zip(found, per_tensor_norms([*map(local_of, found.values())]).tolist(), strict=True))


@torch.no_grad()
def count_not_finite(tensors: Iterable[Tensor]) -> int:
    """Return how many tensors hold a value that is not finite; waits once for each device, and for the others of each shard."""
    broken, flags = 0, dict[torch.device, list[Tensor]]()
    for tensor in tensors:
        is_finite = torch.isfinite(tensor.detach()).all()
        if is_sharded(tensor):
            broken += not bool(is_finite)
        else:
            flags.setdefault(tensor.device, []).append(is_finite)
    return broken + sum(int((~torch.stack(each)).sum()) for each in flags.values())


@torch.no_grad()
def scale_(grads: Sequence[Tensor], coefficient: Tensor) -> None:
    """Multiply all gradients in place by a 0-dimensional tensor."""
    for tensors, _ in _groups([local_of(grad) for grad in grads]):
        torch._foreach_mul_(tensors, coefficient.to(tensors[0].device))


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """Return what torch multiplies the gradients by: at most one."""
    return torch.clamp(max_norm / (norm + SMALLEST), max=1.0)


def parameters_of(source: torch.nn.Module | Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters of a model or of a collection, each of them once."""
    if isinstance(source, torch.nn.Module):
        return _parameters_of_module(source)
    if isinstance(source, Tensor):
        return [source]
    # A parameter listed twice has one gradient, which must be neither counted nor scaled twice.
    return list({id(parameter): parameter for parameter in source}.values())


def made_by_now(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters that have values: those of a lazy module are made in its first pass."""
    return [each for each in parameters if not isinstance(each, torch.nn.UninitializedParameter)]


def _parameters_of_module(module: torch.nn.Module) -> list[Tensor]:
    """Return `list(module.parameters())` in a third of the time, which counts in every step of a small model."""
    modules = modules_of(module)
    if modules is None:
        return list(module.parameters())
    listed = (parameter for each in modules for parameter in each._parameters.values())  # noqa: SLF001
    return list({id(parameter): parameter for parameter in listed if parameter is not None}.values())


def modules_of(module: torch.nn.Module) -> list[torch.nn.Module] | None:
    """Return `list(module.modules())`; None where one of them lists what it holds in a way of its own."""
    found: dict[int, torch.nn.Module] = {}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if id(current) in found:
            continue
        found[id(current)] = current
        if not lists_as_usual(type(current)):  # type: ignore[arg-type]  # mypy holds a class for unhashable
            return None
        waiting += [child for child in reversed(current._modules.values()) if child is not None]  # noqa: SLF001
    return list(found.values())


def limited_embeddings(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that can limit the norm of the rows of their weight."""
    return [each for each in modules if hasattr(each, "max_norm") and "weight" in each._parameters]  # noqa: SLF001


def shortened_by_forward(modules: Iterable[torch.nn.Module]) -> set[Tensor]:
    """Return the weights that become shorter by themselves: an embedding with a largest norm sees to it in each pass."""
    limited = (each for each in limited_embeddings(modules) if each.max_norm is not None)
    return {weight for each in limited if (weight := each._parameters["weight"]) is not None}  # noqa: SLF001


@functools.cache
def lists_as_usual(kind: type[torch.nn.Module]) -> bool:
    """Say whether a class of modules leaves it to torch to list what they hold."""
    names = ("parameters", "named_parameters", "_named_members", "named_modules", "__getattribute__")
    return all(getattr(kind, name) is getattr(torch.nn.Module, name) for name in names)


def _together(vectors: list[Tensor], device: torch.device | None) -> Tensor:
    if not vectors:
        return torch.zeros((), device=device)
    # Summed in one go over the single norms, as torch does it: another order would round differently.
    vector = vectors[0] if len(vectors) == 1 else torch.cat([v.to(device) for v in vectors])
    norm: Tensor = torch.linalg.vector_norm(vector)
    return norm


def _parts(grads: Sequence[Tensor]) -> list[_Part]:
    try:
        return _parts_of(grads)
    except NotImplementedError:  # asked for only now: whose gradients are dense does not pay for a look at each
        if all(grad.layout is torch.strided for grad in grads):
            raise
    parts = _parts_of([_each_row_once(grad) for grad in grads])
    return [replace(part, tensors=[_entries_of(grads[i]) for i in part.positions]) for part in parts]


def _each_row_once(grad: Tensor) -> Tensor:
    """Return the numbers of a sparse gradient, those that stand for one place added up; a dense one as it is."""
    if grad.layout is torch.sparse_coo:
        return grad.coalesce().values()  # the gradient itself stays as it is: a sum in another order rounds otherwise
    return grad if grad.layout is torch.strided else grad.values()


def _entries_of(grad: Tensor) -> Tensor:
    """Return this process's share of a gradient in its own memory, of a sparse one all that is there."""
    if grad.layout is torch.sparse_coo:
        return grad._values()  # noqa: SLF001  # the public way wants them added up first
    return local_of(grad) if grad.layout is torch.strided else grad.values()


def _parts_of(grads: Sequence[Tensor]) -> list[_Part]:
    parts: list[_Part] = []
    for sharded, positions in _by_mesh(grads):
        members = [grads[i] for i in positions]
        for tensors, indices in _groups(members):
            norms, as_torch = _norms_of(tensors, sharded=sharded)
            local = [local_of(tensor) for tensor in tensors] if sharded else tensors
            parts.append(_Part(local, [positions[i] for i in indices], norms, as_torch))
    return parts


def _norms_of(tensors: list[Tensor], *, sharded: bool) -> tuple[Tensor, Tensor]:
    """Return the norms in single precision or better, and as torch rounds them."""
    dtype = tensors[0].dtype
    if sharded:
        return _norms_of_shards(tensors, dtype)
    wide = torch.float32 if dtype in HALF else None
    norms = torch.stack(torch._foreach_norm(tensors, 2.0, wide))  # noqa: SLF001
    if wide is None:
        return norms, norms
    # The CUDA kernel sums in single precision and rounds at the end, so its result can be had from ours. Others sum
    # in another order when they are asked for another result, so they are asked twice.
    exact = tensors[0].is_cuda
    return norms, norms.to(dtype) if exact else torch.stack(torch._foreach_norm(tensors, 2.0))  # noqa: SLF001


def _norms_of_shards(tensors: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Do the same for DTensors, in the one reduction over all processes that torch makes too.

    What is not finite in one process is in no norm's reach to hide: every process gets the same numbers. Torch reduces
    bfloat16 as it is, and so it stays. It does so with float16 as well, whose squares overflow from a norm of 256 on:
    these are reduced in single precision and rounded afterwards, which may differ from torch in the last bit.
    """
    if dtype is torch.float16:  # DTensors know the joint operation without a type only
        each = [torch.linalg.vector_norm(tensor, 2.0, dtype=torch.float32) for tensor in tensors]
        norms = cast("Sharded", torch.stack(each)).full_tensor()
        return norms, norms.to(dtype)
    as_torch = cast("Sharded", torch.stack(torch._foreach_norm(tensors, 2.0))).full_tensor()  # noqa: SLF001
    return as_torch if dtype not in HALF else as_torch.to(torch.float32), as_torch


def _by_mesh(grads: Sequence[Tensor]) -> list[tuple[bool, Sequence[int]]]:
    """Return (whether they are DTensors, their positions): one operation cannot mix meshes."""
    if {type(grad) for grad in grads} == {Tensor}:
        return [(False, range(len(grads)))]
    found: dict[object, list[int]] = {}
    for i, grad in enumerate(grads):
        mesh = grad.device_mesh if is_sharded(grad) else None
        found.setdefault(mesh, []).append(i)
    return [(mesh is not None, positions) for mesh, positions in found.items()]


def _groups(tensors: list[Tensor]) -> list[tuple[list[Tensor], list[int]]]:
    """Return (tensors, their positions) by device and dtype, in the order in which torch adds them up."""
    if not tensors:
        return []
    grouped = _group_tensors_by_device_and_dtype([tensors], with_indices=True)  # type: ignore[list-item]
    return [(cast("list[Tensor]", members), indices) for (members,), indices in grouped.values()]
