"""Tensors of which each process holds a part (torch's DTensor, as FSDP2 makes them): what of them lies here.

Everything here is local: nothing is gathered, and no other process is asked or waited for. A DTensor is known by its
mesh and need not be imported, which would cost every run that has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

PLAIN = frozenset({Tensor, nn.Parameter})
"""The kinds of nearly all tensors: what is one of them need not be looked at any further."""


class Sharded(Protocol):
    """The part of a DTensor that is used."""

    @property
    def device_mesh(self) -> Any:
        """The processes that it is spread over."""

    @property
    def placements(self) -> Any:
        """How it is spread, by dimension of the mesh."""

    def to_local(self) -> Tensor:
        """Return what lies here."""

    def full_tensor(self) -> Tensor:
        """Gather all of it."""


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Say whether a tensor is spread over processes; a replica that each of them holds counts too."""
    return type(tensor) not in PLAIN and hasattr(tensor, "device_mesh")


def local_of(tensor: Tensor) -> Tensor:
    """Return what of a tensor lies in this process, in the memory that the tensor itself has; others as they are."""
    if not is_sharded(tensor):
        return tensor
    local: Tensor = tensor._local_tensor  # noqa: SLF001  # to_local() makes a view of a parameter's, with a history
    wait = getattr(local, "wait", None)  # it is on its way from other processes
    return (local if wait is None else wait()).detach()


def nbytes_of(tensor: Tensor) -> int:
    """Return how much memory a tensor takes in this process."""
    local = local_of(tensor)
    return local.numel() * local.element_size()


def sharded_like(tensor: Tensor, local: Tensor) -> Tensor:
    """Return what lies here as a part of a tensor that is spread like another one; as it is where that one is not."""
    if not is_sharded(tensor):
        return local
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # see above

    made: Tensor = DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,  # it would ask the others
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return made


def sharded_modules(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the modules that FSDP2 has taken over; their parameters are DTensors except while they are in use."""
    # Whoever has not imported it has none.
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [] if kind is None else [each for each in modules if isinstance(each, kind)]


def parts_of_whole(modules: Iterable[nn.Module]) -> Mapping[Tensor, nn.Parameter]:
    """Return the sharded parameter by the whole one that FSDP2 has put in its place for the moment.

    After an evaluation the outermost module keeps its parameters gathered until the next backward pass.
    """
    return {
        whole: each.sharded_param
        for module in sharded_modules(modules)
        for group in groups_of(module)
        for each in group.fsdp_params
        if (whole := getattr(each, "_unsharded_param", None)) is not None
    }


def groups_of(module: Any) -> list[Any]:
    """Return what FSDP2 gathers at once for a module; nothing where this torch does not tell."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # noqa: SLF001
    several = getattr(state, "_fsdp_param_groups", None)  # a torch before 2.12 has one at most
    one = getattr(state, "_fsdp_param_group", None) if several is None else None
    return list(several or ()) if one is None else [one]


def reshard(modules: Iterable[nn.Module]) -> None:
    """Let go of parameters that were gathered, so that those are used which each process holds."""
    with torch.no_grad():
        for module in sharded_modules(modules):
            module.reshard()
