"""Checksums of weights that nothing trains: any change shows, and training never waits for them.

The memory of a tensor is added up as whole numbers of 64 bits, which wrap around, in 16 columns. Such sums do not depend on
the order in which a device adds, so that they are the same whenever the tensor is. A flipped bit changes one of them for
certain. A single sum would be zero as often for a tensor of other signs as a coin falls even: the highest bits of two words
cancel, so that only the others tell; 16 of them never are, all at once. Values that change places within a column do not show.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .arrivals import arriving
from .carrying import hurry
from .sharded import local_of, parts_of_whole
from .side_stream import measuring_stream

logger = logging.getLogger("self_healing.snapshots")

WORD_BYTES = 8
COLUMNS = 16
ROW_BYTES = WORD_BYTES * COLUMNS

Checksum = tuple[int, ...]


class Checksums:
    """The checksums of some tensors, computed beside training on a device, and at once on the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._sums: list[Checksum] | None = None
        self._is_done = threading.Event()
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if not devices:
            self._measure({})
            return
        # What filled them may still be under way.
        ready = {device: torch.cuda.current_stream(device).record_event() for device in devices}
        arriving.do(partial(self._measure, ready))

    def are_there(self) -> bool:
        """Say whether `read` answers without waiting."""
        return self._is_done.is_set()

    def read(self) -> list[Checksum] | None:
        """Return them in the order of the tensors; None where they could not be computed."""
        if not self.are_there():
            with hurry:
                self._is_done.wait()
        return self._sums

    def _measure(self, ready: Mapping[torch.device, torch.cuda.Event]) -> None:
        tensors, self._tensors = self._tensors, []
        try:
            self._sums = _all_sums(tensors, ready)
        except RuntimeError as error:  # of torch too, such as no memory; in a thread that has more to do
            logger.warning("weights that do not train could not be looked at: %s", error)
        finally:
            self._is_done.set()


def checksums_now(tensors: Sequence[Tensor]) -> list[Checksum]:
    """Return the checksums of tensors; waits for their devices."""
    return _all_sums(list(tensors), {})


def frozen_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that need no gradient, by name; those that lie nowhere, or in a form of their own, left out."""
    parts = parts_of_whole(model.modules())
    found = {name: parts.get(each, each) for name, each in model.named_parameters() if not each.requires_grad}
    return {name: each for name, each in found.items() if _can_be_read(local_of(each))}


def is_finite(tensor: Tensor) -> bool:
    """Say whether a tensor holds finite numbers alone; waits for its device."""
    values = local_of(tensor).detach()
    is_narrow = values.dtype.itemsize < 2  # torch cannot tell
    return not values.is_floating_point() or is_narrow or bool(torch.isfinite(values).all())


def _can_be_read(tensor: Tensor) -> bool:
    is_whole = tensor.layout is torch.strided and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor)
    return is_whole and tensor.numel() > 0


@torch.no_grad()
def _all_sums(tensors: list[Tensor], ready: Mapping[torch.device, torch.cuda.Event]) -> list[Checksum]:
    found: dict[int, Checksum] = {}
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        members = [tensors[place] for place in places]
        sums = _on_a_device(members, ready[device]) if device in ready else torch.stack([*map(_sums_of, members)])
        found.update(zip(places, map(tuple, sums.tolist()), strict=True))
    return [found[place] for place in range(len(tensors))]


def _on_a_device(tensors: list[Tensor], ready: torch.cuda.Event) -> Tensor:
    """Return the sums in memory of the host; waits for the stream on which they are computed, and for nothing else."""
    stream = measuring_stream(tensors[0].device)
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        sums = torch.stack([*map(_sums_of, tensors)])
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        event.synchronize()
        return sums.cpu()


def _sums_of(tensor: Tensor) -> Tensor:
    flat = local_of(tensor).detach().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() // ROW_BYTES * ROW_BYTES
    # Words of the width of the sums: others would be copied to that width first, several times the memory of the tensor.
    sums = flat[:whole].view(torch.int64).view(-1, COLUMNS).sum(dim=0)
    if whole == flat.numel():
        return sums
    rest = flat.new_zeros(ROW_BYTES)
    rest[: flat.numel() - whole] = flat[whole:]
    return sums + rest.view(torch.int64)
