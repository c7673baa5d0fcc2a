"""How the values of tensors are set aside: cloned one by one, or collected and copied to the host at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer


class TensorCopy(Protocol):
    """The values a tensor had."""

    @property
    def values(self) -> Tensor:
        """The values, in the shape and type of the tensor."""

    @property
    def is_pinned(self) -> bool:
        """Whether a device can read them without the host."""

    @property
    def nbytes(self) -> int:
        """How much memory they take."""


class Contents(Protocol):
    """The tensors that a thing consists of, found once and copied as often as they stay the same."""

    def note(self) -> None:
        """Note what is there, to be compared with later."""

    def is_same(self) -> bool:
        """Say whether the thing still consists of the tensors that were there when it was noted."""


Found = TypeVar("Found", bound=Contents)


class Copies:
    """Sets values aside. What is captured with one of these is restored from it, as often as needed."""

    is_direct = False
    """Whether a device still reads the tensors themselves, so that whoever writes to them has to wait."""

    def __init__(self) -> None:
        self.names: list[Mapping[Tensor, str]] = []
        """What parameters are called: a module says so, and the state of an optimizer is named by it."""
        self.writers: list[Optimizer] = []
        """The optimizers that write to what is captured."""
        self.nbytes = 0
        """How much memory the values take."""

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what a parameter is called, None where nobody said so."""
        return next((names[parameter] for names in self.names if parameter in names), None)

    def gathered(self, key: tuple[object, ...], collect: Callable[[], Found]) -> Found:
        """Return what a thing consists of: as it was found before under that key, while that is still so.

        Args:
            key: Names the thing and how it is captured. The contents hold on to what its numbers identify.
            collect: Looks for everything and sets it aside with `of`.

        """
        del key
        return collect()

    def again(self, kept: TensorCopy) -> TensorCopy:
        """Return where this capture has the values of a tensor that may have been found by an earlier one."""
        return kept

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Set the values of a tensor aside.

        Args:
            tensor: Whose values.
            name: What it is called where its norm is told.
            measure: Whether its norm is of interest.
            until_update: Whether nothing but a step of an optimizer will write to it.

        """
        raise NotImplementedError

    def start(self) -> None:
        """Copy what was collected; nothing can be collected afterwards."""

    def wait(self) -> None:
        """Wait until all values are there."""

    def is_complete(self) -> bool:
        """Say whether all values are there."""
        return True

    def wait_before_write(self) -> None:
        """Have the device wait, before it writes to what was captured, until that has been read. The host goes on."""

    def verify(self) -> bool:
        """Say whether the memory still holds what was captured."""
        return True

    def norms(self) -> dict[str, float]:
        """Return the norms of what was to be measured, by name, in the order in which it was captured."""
        return {}

    def is_settled(self) -> bool:
        """Say whether `norms` and `verify` answer without waiting."""
        return True

    def is_whole_within(self, seconds: float) -> bool:
        """Say whether the memory holds what was captured, waiting so long for what is on its way; no device is asked."""
        del seconds
        return self.verify()

    def is_in(self, slot: object) -> bool:
        """Say whether the values lie in a slot."""
        return False

    def before_restore(self) -> None:
        """Wait for what must be over before values are put back: each part that is put back asks for it."""

    def after_restore(self) -> None:
        """Wait until everything that was put back has arrived."""


@dataclass(frozen=True, slots=True, eq=False)
class Clone:
    """A copy with memory of its own."""

    values: Tensor
    is_pinned: bool = False

    @property
    def nbytes(self) -> int:
        """How much memory it takes; of a sparse tensor without its indices."""
        values = self.values
        if values.layout is torch.sparse_coo:
            values = values._values()  # noqa: SLF001  # the public one wants it coalesced
        elif values.layout is not torch.strided and values.is_sparse_csr:
            values = values.values()
        return values.numel() * values.element_size()


class Clones(Copies):
    """Copies each tensor at once, to the device it is on or to another one, and waits for it."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self._device = device

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Copy the values."""
        cloned = clone_of(tensor, self._device)
        self.nbytes += cloned.nbytes
        return cloned


def clone_of(tensor: Tensor, device: str | None = None) -> Clone:
    """Copy a tensor of any kind."""
    values = tensor.detach()
    return Clone(values.clone() if device is None else values.to(device, copy=True))


def has_shared_elements(tensor: Tensor) -> bool:
    """Say whether many elements of a tensor are one place in memory, as after `expand`."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
