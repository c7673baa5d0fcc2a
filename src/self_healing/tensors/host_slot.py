"""Snapshots of tensors in host memory: collected, copied at once without waiting for the device, checked when used.

On a GPU the state of a training run goes through a copy on the device, which takes a fiftieth of the time that the way
to the host takes; from there a second stream carries it away while training goes on. Where the device has no room for
that, the tensors themselves are read while the next forward and backward passes run, and the optimizer's step waits for
the rest. The host waits in neither case.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .copies import Copies, TensorCopy, clone_of, has_shared_elements
from .host_layout import ALIGNED_BYTES, Filling, Piece, Place
from .host_memory import HostBlock, hashes_at_once, hashes_one_by_one
from .norms import HALF
from .side_stream import has_room, hold_back, side_stream, staged

logger = logging.getLogger("self_healing.snapshots")

Way = Literal["auto", "staged", "direct"]
SMALL_BYTES = 1 << 20
"""Below this a tensor is staged in any case."""
HEADROOM_BYTES = 64 << 20
"""How much more memory is taken at most than is needed: counts and prepared inputs differ in size now and then."""
MEASURED = (*HALF, torch.float32, torch.float64)


class HostSlot:
    """Reusable memory for one snapshot; what it held before is lost when the next one is copied into it.

    It grows by another block where a snapshot does not fit, and never moves: pinning memory takes a second for some
    gigabytes, and the first snapshot of a run has no moments yet.
    """

    def __init__(self) -> None:
        self.generation = 0
        """How many snapshots it has held; all but the newest are gone."""
        self._blocks: list[HostBlock] = []
        self._numbers: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """How much host memory it takes."""
        return sum(block.capacity for block in self._blocks)

    def reserve(self, nbytes: int, *, pinned: bool) -> None:
        """Take memory in advance, so that the first snapshot does not have to wait for it."""
        missing = nbytes - sum(block.capacity for block in self._blocks if block.is_for_devices == pinned)
        if missing > 0:
            self._grow(missing, pinned=pinned)

    def lay_out(self, places: Iterable[Place], *, pinned: bool) -> list[Piece]:
        """Give each tensor its place; memory is added where it is too small."""
        # What is read directly comes first, so that what is staged lies together; else in the order it was given.
        ordered = sorted(places, key=lambda p: (p.device.index or 0, not p.is_direct, -p.width))
        filling = [Filling(block) for block in self._blocks if block.is_for_devices == pinned]
        left_over = [place for place in ordered if not any(each.take(place) for each in filling)]
        if left_over:
            needed = sum(place.nbytes + ALIGNED_BYTES for place in left_over)
            filling.append(Filling(self._grow(needed, pinned=pinned)))
            fitted = [filling[-1].take(place) for place in left_over]
            assert all(fitted), "a new block has room for what it was made for"
        return [piece for each in filling for piece in each.pieces]

    def numbers(self, count: int) -> Tensor:
        """Return pinned memory for so many numbers."""
        if self._numbers is None or self._numbers.numel() < count:
            self._numbers = torch.empty(2 * count, dtype=torch.float64, pin_memory=True)
        return self._numbers[:count]

    def _grow(self, nbytes: int, *, pinned: bool) -> HostBlock:
        block = HostBlock(nbytes + min(nbytes // 8, HEADROOM_BYTES), pinned=pinned)
        self._blocks.append(block)
        return block


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """The values of one tensor in a slot."""

    copies: HostCopies
    place: Place

    @property
    def values(self) -> Tensor:
        """A view of the slot's memory; waits until it is filled."""
        self.copies.assert_kept()
        self.copies.wait()
        return self.place.values()

    @property
    def is_pinned(self) -> bool:
        """Whether a device can read it without the host."""
        return self.place.block is not None and self.place.block.is_pinned

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.place.nbytes


class HostCopies(Copies):
    """Collects tensors and copies all of them into a slot.

    Args:
        slot: Where to; whatever it held before is lost when the copy starts.
        way: `staged` through a copy on the device, `direct` from the tensors themselves, `auto` by the room there is.
        measure: Whether the norms of parameters and optimizer state are computed.

    """

    def __init__(self, slot: HostSlot, *, way: Way = "auto", measure: bool = True) -> None:
        super().__init__()
        self.slot = slot
        self._way = way
        self._measures = measure
        self._places: list[Place] = []
        self._known: dict[tuple[Any, ...], Place] = {}
        self._measured: dict[str, Place] = {}
        self._generation: int | None = None
        self._events: dict[torch.device, torch.cuda.Event] = {}
        self._has_arrived = False
        self._used: dict[HostBlock, int] = {}
        self._norms: dict[Place, float] = {}
        self._hashes: list[int] | None = None
        self._settled = threading.Event()

    # -- collecting ----------------------------------------------------------------------------------

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Collect a tensor; it is read when `start` is called. What cannot lie in a slot is copied at once."""
        assert self._generation is None, "collected after the copy was started"
        if _is_odd(tensor):
            clone = clone_of(tensor, "cpu")
            self.nbytes += clone.nbytes
            return clone
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        place = self._known.get(key) if tensor.numel() else None
        if place is None:
            place = Place.of(tensor, until_update=until_update)
            self._places.append(place)
            self._known[key] = place
            self.nbytes += place.nbytes
        elif not until_update:
            place.until_update = False
        if measure and self._measures and place.dtype in MEASURED:
            self._measured[self._unique(name)] = place
        return HostCopy(self, place)

    def _unique(self, name: str) -> str:
        count, wanted = 1, name
        while name in self._measured:
            count += 1
            name = f"{wanted} ({count})"
        return name

    # -- copying -------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self) -> None:
        """Send everything on its way; returns as soon as that is arranged, for tensors of the host when it is done."""
        assert self._generation is None, "started twice"
        self.slot.generation += 1
        self._generation = self.slot.generation
        filled = [place for place in self._places if place.nbytes]
        wanted = set(self._measured.values())
        self._norms.update((place, 0.0) for place in wanted if not place.nbytes)
        on_device = [place for place in filled if place.device.type == "cuda"]
        pinned = self._copy_from_devices(on_device, wanted) if on_device else None
        pieces = self.slot.lay_out([place for place in filled if place.device.type == "cpu"], pinned=False)
        for piece in pieces:
            self._copy_on_host(piece, wanted)
        for place in self._places:
            place.source = None
            if place.block is not None:
                self._used[place.block] = max(self._used.get(place.block, 0), place.offset + place.nbytes)
        self._known.clear()
        if pinned is None:
            self._hash_all()
            self._settled.set()
        else:
            threading.Thread(target=self._settle, args=pinned, name="snapshot-arrives", daemon=True).start()

    def _copy_on_host(self, piece: Piece, wanted: set[Place]) -> None:
        for run in piece.runs:
            torch._foreach_copy_(list(run.views(piece.memory, piece.start)), [p.as_units() for p in run.places])
        places, norms = _norms([(place, place.source) for run in piece.runs for place in run.places], wanted)
        self._norms.update(zip(places, [] if norms is None else norms.tolist(), strict=True))

    def _copy_from_devices(self, places: list[Place], wanted: set[Place]) -> tuple[list[Place], Tensor]:
        """Return whose norms will be where, once all has arrived."""
        devices = sorted({place.device for place in places}, key=str)
        for device in devices:
            self._choose_way(device, [place for place in places if place.device == device])
        pieces = self.slot.lay_out(places, pinned=True)
        measured: list[tuple[list[Place], list[Tensor]]] = []
        for device in devices:
            with torch.cuda.device(device):
                measured.append(self._copy_from(device, [piece for piece in pieces if piece.device == device], wanted))
        numbers = self.slot.numbers(sum(len(whose) for whose, _ in measured))
        begin = 0
        for device, (whose, norms) in zip(devices, measured, strict=True):
            side = side_stream(device)
            with torch.cuda.stream(side):
                if norms:
                    numbers[begin : begin + len(whose)].copy_(torch.cat(norms), non_blocking=True)
                begin += len(whose)
                event = self._events[device] = torch.cuda.Event(blocking=True)
                event.record(side)
        if self.is_direct:
            self._hold_writers_back()
        return [place for whose, _ in measured for place in whose], numbers

    def _choose_way(self, device: torch.device, places: list[Place]) -> None:
        needed = sum(place.nbytes for place in places)
        if self._way == "staged" or (self._way == "auto" and has_room(device, needed)):
            return
        for place in places:
            # What a forward or backward pass may write to is safe only on the way to a copy of its own.
            place.is_direct = place.until_update and place.nbytes >= SMALL_BYTES and not place.is_scattered
            self.is_direct |= place.is_direct

    def _copy_from(
        self, device: torch.device, pieces: list[Piece], wanted: set[Place]
    ) -> tuple[list[Place], list[Tensor]]:
        whose: list[Place] = []
        norms: list[Tensor] = []
        for piece in pieces:
            piece.block.devices.add(device)
            found, values = self._copy_piece(piece, torch.cuda.current_stream(device), side_stream(device), wanted)
            whose += found
            if values is not None:
                norms.append(values)
        return whose, norms

    def _copy_piece(
        self, piece: Piece, current: torch.cuda.Stream, side: torch.cuda.Stream, wanted: set[Place]
    ) -> tuple[list[Place], Tensor | None]:
        """Return whose norms are in a vector on the device; a staged copy is let go of here, and freed once it is read."""
        places = [place for run in piece.runs for place in run.places]
        on_device = None if piece.is_direct else staged(piece)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            if on_device is None:
                self._read_in_place(piece, side)
                found = _norms([(place, place.source) for place in places], wanted)
            else:
                memory, views = on_device
                piece.memory.copy_(memory, non_blocking=True)
                memory.record_stream(side)
                read = [(p, view.view(p.dtype)) for p, view in zip(places, views, strict=True) if p in wanted]
                found = _norms(read, wanted)
        if on_device is None and not all(place.until_update for place in places):
            current.wait_stream(side)  # there was no room to stage it: whatever comes next may write to it
        return found

    def _read_in_place(self, piece: Piece, side: torch.cuda.Stream) -> None:
        self.is_direct = True
        for run in piece.runs:
            for view, place in zip(run.views(piece.memory, piece.start), run.places, strict=True):
                view.copy_(place.as_units(), non_blocking=True)
                if place.source is not None:
                    place.source.record_stream(side)  # nobody is given the memory before it was read

    # -- arriving ------------------------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Say whether all values are there."""
        return self._generation is not None and all(event.query() for event in self._events.values())

    def wait(self) -> None:
        """Wait until all values are there."""
        assert self._generation is not None, "the copy was not started"
        if not self._has_arrived:
            for event in self._events.values():
                event.synchronize()
            self._has_arrived = True

    def wait_before_write(self) -> None:
        """Have the current stream of each device wait until the device has read everything. The host goes on."""
        for device, event in self._events.items():
            torch.cuda.current_stream(device).wait_event(event)

    def verify(self) -> bool:
        """Say whether the memory still holds what was captured, by hashing it once more."""
        if not self.is_kept():
            return False
        self._settled.wait()
        return self._hashes is not None and hashes_at_once(self._slices()) == self._hashes

    def norms(self) -> dict[str, float]:
        """Return the norms by name, in the order of capture; waits until they are there.

        Nothing where they never arrived, because the device failed or the slot was given away at once.
        """
        self._settled.wait()
        if not all(place in self._norms for place in self._measured.values()):
            return {}
        return {name: self._norms[place] for name, place in self._measured.items()}

    def is_settled(self) -> bool:
        """Say whether `norms` and `verify` answer without waiting."""
        return self._settled.is_set()

    def is_kept(self) -> bool:
        """Say whether the slot still is this snapshot's."""
        return self._generation == self.slot.generation

    def is_in(self, slot: object) -> bool:
        """Say whether the values lie in a slot."""
        return slot is self.slot and self.is_kept()

    def assert_kept(self) -> None:
        """Refuse to read the memory of another snapshot."""
        if self._generation is None:
            raise RuntimeError("this snapshot was collected but its copy never started: call start() first")
        if not self.is_kept():
            raise RuntimeError("the memory of this snapshot was given to a newer one: it cannot be restored any more")

    def before_restore(self) -> None:
        """Wait for the copy, and have each device finish reading what is about to be written to."""
        self.assert_kept()
        self.wait()
        for device in self._events:
            torch.cuda.current_stream(device).wait_stream(side_stream(device))

    def after_restore(self) -> None:
        """Wait until everything that was put back has arrived."""
        for device in self._events:
            torch.cuda.current_stream(device).synchronize()

    def _settle(self, whose: Sequence[Place], numbers: Tensor) -> None:
        """Wait for the devices, then read the norms and hash the memory: in a thread of its own."""
        try:
            self.wait()
            norms = numbers.tolist()
            if self.is_kept():  # else they may be those of the next one
                self._norms.update(zip(whose, norms, strict=True))
                self._hash_all()
        except RuntimeError as error:  # the device failed: without hashes nothing is ever restored from this
            logger.warning("a snapshot did not arrive: %s", error)
        finally:
            self._settled.set()

    def _hash_all(self) -> None:
        hashes: list[int] = []
        for each in hashes_one_by_one(self._slices()):
            if not self.is_kept():  # the slot was given away meanwhile
                return
            hashes.append(each)
        self._hashes = hashes

    def _slices(self) -> list[memoryview]:
        return [piece for block, used in self._used.items() for piece in block.slices(used)]

    def _hold_writers_back(self) -> None:
        """Have the next step of each optimizer wait; where that cannot be arranged, everything waits."""
        held_back = [hold_back(writer, self) for writer in self.writers]
        if not held_back or not all(held_back):
            self.wait_before_write()


# -- tensors -------------------------------------------------------------------------------------------------


def _norms(read: Iterable[tuple[Place, Tensor | None]], wanted: set[Place]) -> tuple[list[Place], Tensor | None]:
    """Measure what was read of some places; half precision in single precision, where it cannot overflow."""
    groups: dict[torch.dtype, list[tuple[Place, Tensor]]] = {}
    for place, values in read:
        if place in wanted and values is not None:
            groups.setdefault(place.dtype, []).append((place, values))
    norms = [
        torch.stack(torch._foreach_norm([values for _, values in group], 2.0, _wide(dtype))).double()  # noqa: SLF001
        for dtype, group in groups.items()
    ]
    return [place for group in groups.values() for place, _ in group], torch.cat(norms) if norms else None


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in HALF else None


def _is_odd(tensor: Tensor) -> bool:
    """Say whether a tensor is more than its elements in memory, or several of its elements are one."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return True
    if tensor.device.type not in ("cpu", "cuda") or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return True
    return not tensor.is_contiguous() and has_shared_elements(tensor)
