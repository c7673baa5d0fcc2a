"""A few earlier states of a run in host memory, each of which can be returned to more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

from ..family import followed_reference, names_in_all, weights_were_changed
from .also_state import nbytes_in_also
from .callback_state import nbytes_in_callbacks
from .guard_state import GuardState
from .optimizer_extras import nbytes_in_optimizer

if TYPE_CHECKING:
    from ...tensors.coming_slot import ComingSlot
    from ...tensors.copies import Copies
    from ...tensors.host_memory import Backing
    from ...tensors.host_slot import HostCopies, HostSlot
    from ...tensors.state import Captured
    from ..step.step_guard import StepGuard
    from .data_windows import Place
    from .trainer_capture import TrainerCapture


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state of a run between two steps, and where its data stood."""

    key: str
    step: int
    """The last step whose update it holds."""
    place: Place
    nbytes: int
    capture: TrainerCapture
    updates: int = 0
    """How many updates it holds: fewer than steps where some were held back for good."""
    is_restart_only: bool = False
    """The data since then are no longer kept: it can be returned to only by entering `train()` anew."""

    @property
    def copies(self) -> HostCopies:
        """What was copied to host memory."""
        copies: Any = self.capture.copies
        return copies  # type: ignore[no-any-return]

    @property
    def slot(self) -> HostSlot:
        """Where it lies."""
        return self.copies.slot

    def norms(self) -> dict[str, float] | None:
        """Return the norms of what it holds by name; None while they are on their way from a device."""
        copies = self.capture.copies
        return copies.norms() if copies.is_settled() else None


@dataclass(frozen=True, slots=True, eq=False)
class Furthest:
    """The state with the most updates of a run that has returned to before it."""

    step: int
    updates: int
    capture: TrainerCapture


def oldest(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Choose the oldest to make room for a new one."""
    return snapshots[0]


class SnapshotDamagedError(RuntimeError):
    """The memory of a state no longer holds what was set aside; nothing of it was put back."""


class MemorySnapshots:
    """At most `slots` states; which one makes room for the next is for `make_room` to say."""

    def __init__(
        self,
        trainer: Any,
        *,
        slots: int = 2,
        guard: StepGuard | None = None,
        only_trainable: bool | None = None,
        make_room: Callable[[Sequence[Snapshot]], Snapshot] = oldest,
        backing: Callable[[], Backing | None] = lambda: None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots = {slots}: at least one state must be kept to return to it")
        self.trainer = trainer
        self.slots = slots
        self.guard = guard
        self._only_trainable = only_trainable
        """None leaves out what does not train wherever something does not, as with LoRA."""
        self._make_room = make_room
        self.backing = backing
        """Where the memory for one state after the other comes from; None is that of this process alone."""
        self._kept: list[Snapshot] = []
        self.furthest: Furthest | None = None
        """A sound state of steps that were undone since, for a run that ends before it has come as far again."""
        self._memory: list[HostSlot] = []
        """All host memory there is, for states that are kept and for later ones: it is costly to have on a GPU."""
        self._coming: ComingSlot | None = None
        """More of it, which is being made ready."""
        self._taken = 0
        self._trained: list[Any] | None = None
        """What the optimizers held when that was last looked at."""
        self._are_made = True
        """All of it had values then: those of a lazy module are made in its first pass."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Any:
        return iter(tuple(self._kept))

    @property
    def nbytes(self) -> int:
        """How much host memory all of them take."""
        return sum(snapshot.nbytes for snapshot in self._kept)

    def get(self, key: str) -> Snapshot | None:
        """Return the state of that key, None where it is not kept any more."""
        return next((snapshot for snapshot in self._kept if snapshot.key == key), None)

    def newest(self, *, before_step: int | None = None) -> Snapshot | None:
        """Return the newest one, or the newest that holds no update of a step or of any after it."""
        kept = (each for each in reversed(self._kept) if before_step is None or each.step < before_step)
        return next(kept, None)

    def has_memory(self, *, wait: bool = False) -> bool:
        """Say whether a state can be taken at once; where more memory must be pinned for it first, have that begun."""
        from ...tensors.coming_slot import ComingSlot

        needs_more = self._taken and len(self._kept) < self.slots and self._unused() is None
        if needs_more and self._coming is None and self.trainer.args.device.type == "cuda":
            self._coming = ComingSlot(self.backing(), self.expected_nbytes())
        if self._coming is None or not needs_more:
            return True
        return wait or self._coming.is_there()

    def take(self, place: Place) -> Snapshot:
        """Set the state of this moment aside, in the place of another one where all are taken."""
        from ...tensors.host_slot import HostCopies
        from .trainer_capture import TrainerCapture

        while len(self._kept) >= self.slots:
            self._kept.remove(self._make_room(self._kept))
        trainer = self.trainer
        # How much of the device a step needs is known after the first one.
        copies = HostCopies(self._free_memory(), way="auto" if self._taken else "direct")
        capture = TrainerCapture(trainer, copies=copies, only_trainable=self.leaves_out_frozen())
        for part in self._more(copies):
            capture.add(part)
        capture.start()
        self._taken += 1
        step = int(trainer.state.global_step)
        snapshot = Snapshot(f"memory-{self._taken}-step-{step}", step, place, capture.nbytes(), capture)
        self._kept.append(snapshot)
        return snapshot

    def present(self) -> TrainerCapture:
        """Set the state of this moment aside without keeping it among the others."""
        from ...tensors.host_slot import HostCopies
        from .trainer_capture import TrainerCapture

        copies = HostCopies(self._free_memory())
        capture = TrainerCapture(self.trainer, copies=copies, only_trainable=self.leaves_out_frozen())
        capture.start()
        return capture

    def expected_nbytes(self) -> int:
        """Return how much host memory the state of this moment would take."""
        from ...tensors.norms import made_by_now
        from ...tensors.sharded import nbytes_of

        parameters = made_by_now(self.trainer.model.parameters())
        all_of_them = not self.leaves_out_frozen()
        size: int = sum(nbytes_of(p) for p in parameters if p.requires_grad or all_of_them)
        size += sum(nbytes_of(p.grad) for p in parameters if p.grad is not None)  # a loop may drop them late
        return size + _nbytes_besides_weights(self.trainer)

    def leaves_out_frozen(self) -> bool:
        """Say whether frozen parameters need not be kept: no optimizer holds one, so that none can be trained later."""
        if self._only_trainable is not None:
            return self._only_trainable
        from ...tensors.norms import parameters_of

        frozen = {id(p) for p in parameters_of(self.trainer.model) if not p.requires_grad}
        return bool(frozen) and not any(id(p) in frozen for group in self._groups() for p in group["params"])

    def _groups(self) -> list[dict[str, Any]]:
        """Return the groups of all optimizers that are known: those of a second one may be frozen for a moment, as in a GAN."""
        optimizers = (self.trainer.optimizer, *getattr(self.trainer, "also", ()))
        return [*chain.from_iterable(getattr(each, "param_groups", ()) for each in optimizers)]

    def without_what_trains_now(self) -> list[Snapshot]:
        """Return the states that were taken before more was trained, where that is so since the last time this was asked.

        What was frozen then is in none of them, and is no longer what it was.
        """
        from ...tensors.norms import made_by_now

        before, held = self._trained, [*chain.from_iterable(map(itemgetter("params"), self._groups()))]
        if before is not None and len(before) == len(held) and all(map(is_, before, held)) and self._are_made:
            return []
        own = {id(parameter) for parameter in self.trainer.model.parameters()}
        trained = [parameter for parameter in made_by_now(held) if id(parameter) in own]
        self._trained, self._are_made = held, len(made_by_now(held)) == len(held)
        if self.furthest is not None and not self.furthest.capture.weights.holds(trained):
            self.furthest = None
        return [snapshot for snapshot in self._kept if not snapshot.capture.weights.holds(trained)]

    def restore(self, snapshot: Snapshot) -> None:
        """Put a state back, and forget those after it: they belong to what is undone."""
        if not snapshot.capture.copies.verify():  # before anything is touched: another state may still be whole
            raise SnapshotDamagedError(
                f"{snapshot.key} was changed in memory since it was taken; nothing was put back: return to another state"
            )
        self.put_back(snapshot)

    def put_back(self, snapshot: Snapshot) -> None:
        """Do so with a state that was looked at already."""
        snapshot.capture.restore()
        weights_were_changed(self.trainer)
        self._kept = self._kept[: self._kept.index(snapshot) + 1]

    @contextmanager
    def for_a_moment(self, snapshot: Snapshot) -> Iterator[None]:
        """Put a state back inside the block, and the present one afterwards; what was taken since stays."""
        if not snapshot.capture.copies.verify():
            raise SnapshotDamagedError(f"{snapshot.key} was changed in memory since it was taken")
        present = self.present()
        try:
            snapshot.capture.restore(with_added=False)  # the guard goes on where it is
            yield
        finally:
            present.restore()

    def drop(self, key: str) -> None:
        """Let go of one of them."""
        self._kept = [snapshot for snapshot in self._kept if snapshot.key != key]

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()
        self.furthest = None
        if self._coming is not None:
            self._memory.append(self._coming.slot())
            self._coming = None
        for each in self._memory:
            each.discard()
        self._memory.clear()

    def _free_memory(self) -> HostSlot:
        """Return the memory of a state that is no longer kept, or new one."""
        from ...tensors.host_slot import HostSlot

        free = self._unused()
        if free is None:
            free = HostSlot(self.backing()) if self._coming is None else self._coming.slot()
            self._coming = None
            self._memory.append(free)
        return free

    def _unused(self) -> HostSlot | None:
        captures = [snapshot.capture for snapshot in self._kept]
        used = [each.copies for each in (captures if self.furthest is None else [*captures, self.furthest.capture])]
        return next((each for each in self._memory if not any(copies.is_in(each) for copies in used)), None)

    def _more(self, copies: Copies) -> list[Captured]:
        """Return what changes besides what every trainer has: the guard, a reference model that follows the model."""
        from ...tensors.state import ModuleState

        parts: list[Captured] = []
        if self.guard is not None:
            parts.append(GuardState(self.guard, copies))
        reference = followed_reference(self.trainer)
        if reference is not None:
            parts.append(ModuleState(reference, copies=copies, prefix="ref_model."))
        return parts


def _nbytes_besides_weights(trainer: Any) -> int:
    """Return the size of moments, buffers, inputs that were made in advance, and what follows the weights."""
    import torch
    from torch.utils import _pytree

    from ...tensors.sharded import nbytes_of

    things = (
        list(trainer.optimizer.state.values()),
        list(trainer.model.buffers()),
        [getattr(trainer, name, None) for name in names_in_all("generated")],
    )
    reference = followed_reference(trainer)
    followers = () if reference is None else (*reference.parameters(), *reference.buffers())
    leaves = (*_pytree.tree_leaves(things), *followers)
    own = sum(nbytes_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
    return own + nbytes_in_callbacks(trainer) + nbytes_in_optimizer(trainer) + nbytes_in_also(trainer)
