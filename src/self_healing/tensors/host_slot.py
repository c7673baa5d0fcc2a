"""Snapshots of tensors in host memory: collected, copied at once without waiting for the device, checked when used.

On a GPU the state of a training run goes through a copy on the device, which takes a fiftieth of the time that the way
to the host takes; from there a second stream carries it away while training goes on. Where the device has no room for
that, the tensors themselves are read while the next forward and backward passes run, and the optimizer's step waits for
the rest. The host waits in neither case.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .arrivals import Measured, arriving, hashing, measure_copy, measure_loads, read, wait_for_devices
from .carrying import Load, Shipment, carry_at_once, staged
from .copies import Copies, Found, TensorCopy, clone_of
from .described import Described, describe, told_apart
from .host_layout import Piece, Place, is_odd
from .host_memory import HostBlock, hashes_at_once, hashes_one_by_one
from .norms import HALF
from .reused_memory import Arrangement, Bundle, HostSlot, Way
from .side_stream import has_room, hold_back, measuring_stream, side_stream
from .staging import Staging, staging_of

logger = logging.getLogger("self_healing.snapshots")

__all__ = ["HostCopies", "HostCopy", "HostSlot"]

SMALL_BYTES = 1 << 20
"""Below this a tensor is staged in any case."""
MEASURED = (*HALF, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """The values of one tensor in a slot."""

    copies: HostCopies | None
    """None where it only says which place: whoever captures what was gathered before reads it through its own."""
    place: Place

    @property
    def values(self) -> Tensor:
        """A view of the slot's memory; waits until it is filled."""
        assert self.copies is not None, "read without saying of which capture"
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

    What was gathered for the last snapshot in the slot, and is still the same, is neither collected nor laid out again:
    it is copied from where it is known to be to where it is known to go.

    Args:
        slot: Where to; whatever it held before is lost when the copy starts.
        way: `staged` through a copy on the device, `direct` from the tensors themselves, `auto` by the room there is.
        measure: Whether the norms of parameters and optimizer state are computed.

    """

    def __init__(self, slot: HostSlot, *, way: Way = "auto", measure: bool = True) -> None:
        super().__init__()
        self.slot = slot
        self.collected = 0
        """How many things had to be collected, because they were new to the slot or had changed."""
        self._way: Way = way
        self._measures = measure
        self._bundles: dict[tuple[object, ...], Bundle] = {}
        self._loose = Bundle()
        """What is not part of a thing that is likely to be the same next time."""
        self._current = self._loose
        self._must_arrange = False
        self._generation: int | None = None
        self._shipment = Shipment()
        self._arrangement: Arrangement | None = None
        self._used: dict[HostBlock, int] = {}
        self._norms: dict[Place, float] = {}
        self._hashes: list[int] | None = None
        self._settled = threading.Event()

    # -- collecting ----------------------------------------------------------------------------------

    def gathered(self, key: tuple[object, ...], collect: Callable[[], Found]) -> Found:
        """Return what the last snapshot in the slot found under that key, or collect it."""
        assert self._generation is None, "collected after the copy was started"
        assert self._current is self._loose, "one thing at a time"
        bundle = self.slot.gathered.get(key) if key not in self._bundles else None
        if bundle is None or bundle.contents is None or not bundle.contents.is_same():
            self.collected += 1
            bundle = self._current = Bundle()
            try:
                bundle.contents = collect()
            finally:
                self._current = self._loose
            if key in self._bundles:  # asked for twice, which nobody needs to be quick at
                key, bundle.is_reusable = (*key, self.collected), False
            if bundle.is_reusable:
                bundle.contents.note()
        else:
            self.nbytes += bundle.nbytes
        self._bundles[key] = bundle
        return cast("Found", bundle.contents)

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Collect a tensor; it is read when `start` is called. What cannot lie in a slot is copied at once."""
        assert self._generation is None, "collected after the copy was started"
        bundle = self._current
        if is_odd(tensor):
            bundle.is_reusable = False
            bundle.odd.append(name)
            clone = clone_of(tensor, "cpu")
            self.nbytes += clone.nbytes
            return clone
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        place = self._known(key) if tensor.numel() else None
        is_measured = measure and tensor.dtype in MEASURED
        if place is None:
            place = Place.of(tensor, until_update=until_update, is_measured=is_measured)
            bundle.places.append(place)
            bundle.known[key] = place
            bundle.nbytes += place.nbytes
            self.nbytes += place.nbytes
        elif (place.until_update and not until_update) or (is_measured and not place.is_measured):
            place.until_update &= until_update
            place.is_measured |= is_measured
            self._must_arrange = True
        bundle.named.append((name, place))
        if is_measured:
            bundle.measured.append((name, place))
        return HostCopy(self if bundle is self._loose else None, place)

    def again(self, kept: TensorCopy) -> TensorCopy:
        """Return the same place as this capture fills it."""
        return HostCopy(self, kept.place) if isinstance(kept, HostCopy) else kept

    def _known(self, key: tuple[Any, ...]) -> Place | None:
        own = self._current.known.get(key)
        if own is not None:
            return own
        for other in (*self._bundles.values(), self._loose):
            if key in other.known:
                self._current.is_reusable = False  # else it would count on what the other one may lose
                return other.known[key]
        return None

    @property
    def _places(self) -> list[Place]:
        return [place for bundle in (*self._bundles.values(), self._loose) for place in bundle.places]

    # -- copying -------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self) -> None:
        """Send everything on its way; returns as soon as that is arranged, for tensors of the host when it is done."""
        assert self._generation is None, "started twice"
        slot = self.slot
        self._generation = slot.begin()
        bundles = list(self._bundles.values())
        arrangement = slot.arrangement
        if arrangement is None or self._must_arrange or not arrangement.is_for(bundles, self._way):
            pieces = self._laid_out([place for bundle in bundles for place in bundle.places])
            will_last = all(bundle.is_reusable for bundle in bundles)
            staging = {piece: staging_of(piece) for piece in pieces} if will_last else {}
            arrangement = Arrangement(bundles, self._way, pieces, self.is_direct, staging)
        self._arrangement, self.is_direct = arrangement, arrangement.is_direct
        self._note_used(arrangement.pieces)
        loose = self._laid_out(self._loose.places, like=arrangement)
        self._note_used(loose)
        slot.gathered = {key: bundle for key, bundle in self._bundles.items() if bundle.is_reusable}
        slot.arrangement = arrangement if len(slot.gathered) == len(bundles) else None
        self._copy([*arrangement.pieces, *loose], arrangement.staging)

    def _laid_out(self, places: list[Place], like: Arrangement | None = None) -> list[Piece]:
        """Give each tensor its place, behind what is in use; the same way as other tensors where these are given."""
        filled = [place for place in places if place.nbytes]
        on_device = [place for place in filled if place.device.type == "cuda"]
        for device in {place.device for place in on_device}:
            self._choose_way([place for place in on_device if place.device == device], like)
        pieces = self.slot.lay_out(on_device, pinned=True, after=self._used) if on_device else []
        on_host = [place for place in filled if place.device.type == "cpu"]
        return pieces + (self.slot.lay_out(on_host, pinned=False, after=self._used) if on_host else [])

    def _choose_way(self, places: list[Place], like: Arrangement | None) -> None:
        # The device is not asked for the little that comes besides.
        if like is not None and like.bundles:
            is_staged = not like.is_direct
        elif self._way == "auto":
            is_staged = has_room(places[0].device, sum(place.nbytes for place in places))
        else:
            is_staged = self._way == "staged"
        for place in places:
            # What a forward or backward pass may write to is safe only on the way to a copy of its own.
            is_large = place.nbytes >= SMALL_BYTES and not place.is_scattered
            place.is_direct = not is_staged and place.until_update and is_large
            self.is_direct |= place.is_direct

    def _note_used(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._used[piece.block] = max(self._used.get(piece.block, 0), piece.end)

    def _copy(self, pieces: list[Piece], staging: Mapping[Piece, Staging | None]) -> None:
        found: list[Measured] = []
        shipment = self._shipment
        for device, of_device in itertools.groupby(sorted(pieces, key=_device_of), key=lambda piece: piece.device):
            if device.type == "cpu":
                found += [each for piece in of_device for each in self._copy_on_host(piece)]
                continue
            with torch.cuda.device(device):
                shipment.devices[device] = torch.cuda.Event(blocking=True)
                for piece in of_device:
                    piece.block.devices.add(device)
                    shipment.loads += self._load(piece, staging.get(piece), found)
        if shipment.devices:
            arriving.do(lambda: self._arrive(found))
            if self.is_direct:
                self._hold_writers_back()
        else:
            shipment.all_sent()
            self._let_go_of_sources()
            self._norms.update(read(found, self.slot.numbers))
            self._hash_all()
            self._settled.set()

    def _copy_on_host(self, piece: Piece) -> list[Measured]:
        memory = piece.memory
        piece.copy_to(memory)
        return measure_copy(piece, memory) if self._measures else []

    def _load(self, piece: Piece, staging: Staging | None, found: list[Measured]) -> list[Load]:
        """Return what is to be carried to the host later on; what cannot wait is on its way when this returns."""
        copy = None if piece.is_direct else staged(piece, staging)
        if copy is not None:
            return [copy]
        self.is_direct = True
        if not piece.is_direct:
            self.slot.arrangement = None  # the device has less room than it had: it is asked the next time
        load = Load(piece, None, torch.cuda.current_stream().record_event())
        if all(place.until_update for run in piece.runs for place in run.places):
            return [load]
        carry_at_once(load)  # there was no room to stage it, and whatever comes next may write to it
        found += measure_loads([load]) if self._measures else []
        torch.cuda.current_stream().wait_stream(side_stream(piece.device))
        torch.cuda.current_stream().wait_stream(measuring_stream(piece.device))
        return []

    def _let_go_of_sources(self) -> None:
        for place in self._loose.places:
            place.source = None

    # -- arriving ------------------------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Say whether all values are there."""
        return self._shipment.is_there()

    def wait(self) -> None:
        """Wait until all values are there."""
        assert self._generation is not None, "the copy was not started"
        self._shipment.wait()

    def wait_before_write(self) -> None:
        """Have the current stream of each device wait until the device has read everything.

        The host goes on when the rest is sent, which takes some milliseconds at most.
        """
        self._shipment.wait_before_write()

    def verify(self) -> bool:
        """Say whether the memory still holds what was captured, by hashing it once more."""
        if not self.is_kept() or not self._settle_within(None):
            return False
        return self._hashes is not None and hashes_at_once(self._slices()) == self._hashes

    def is_whole_within(self, seconds: float) -> bool:
        """Say whether all has arrived and is what was captured; of a device that has failed nothing is asked."""
        return self._settle_within(seconds) and self.verify()

    def _settle_within(self, seconds: float | None) -> bool:
        """Wait, so long at the most, until all has arrived and is hashed; what is on its way is sent at once."""
        return self._settled.wait(self._shipment.wait_until_sent(seconds))

    def norms(self) -> dict[str, float]:
        """Return the norms by name, in the order of capture; waits until they are there.

        Nothing where they never arrived, because the device failed or the slot was given away at once.
        """
        self._settle_within(None)
        measured = [each for bundle in (*self._bundles.values(), self._loose) for each in bundle.measured]
        if not self._measures or any(place.nbytes and place not in self._norms for _, place in measured):
            return {}
        return {name: self._norms.get(place, 0.0) for name, place in told_apart(measured)}

    def described(self) -> Described | None:
        """Return what lies where, with its hashes; None while they are not known, or where they never will be."""
        if not self._settled.is_set() or self._hashes is None or self._arrangement is None or not self.is_kept():
            return None
        return describe(self._arrangement, self._loose, self._used, self._hashes)

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
        if self._shipment.devices:
            wait_for_devices()  # a later snapshot may be read from where this one is put back to

    def after_restore(self) -> None:
        """Wait until everything that was put back has arrived."""
        for device in self._shipment.devices:
            torch.cuda.current_stream(device).synchronize()

    @torch.no_grad()
    def _arrive(self, found: list[Measured]) -> None:
        """Carry everything to the host, and measure it: in a thread of its own, which leaves it to another to hash."""
        shipment = self._shipment
        try:
            shipment.carry(lambda load: self._measure(load, found))
            shipment.all_sent()
            shipment.wait()
            self._norms.update(read(found, self.slot.numbers))
        except RuntimeError as error:  # the device failed: without hashes nothing is ever restored from this
            logger.warning("a snapshot did not arrive: %s", error)
            shipment.failed(error)
            self._settled.set()
        else:
            hashing.do(self._hash_and_settle)
        finally:
            self._let_go_of_sources()

    def _measure(self, load: Load, found: list[Measured]) -> None:
        try:
            found += measure_loads([load]) if self._measures else []
        except torch.cuda.OutOfMemoryError as error:
            logger.warning("a snapshot is not measured, the device has no room for it: %s", error)

    def _hash_and_settle(self) -> None:
        try:
            self._hash_all()
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


def _device_of(piece: Piece) -> tuple[bool, int]:
    """Sort pieces by device, and those of the host behind all others: devices are at work meanwhile."""
    return piece.device.type == "cpu", piece.device.index or 0
