"""The data of the steps since the oldest state that a run can return to, kept so that they can be used once more.

Batches are kept as they leave the loader, one by one, so it does not matter who asks for them: the loop, or the guard
when it wants other data for a step. Nothing is ever fetched twice, which works for every loader, stream and collator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from .host_copies import HostCopy
from .left_out import that_follow

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState
    from .restart import EpochStart

MOST_STEPS = 10_000
"""Steps whose batches are remembered by their numbers."""
RANDOM_STATE_BYTES = 32_000
"""What python's generator (625 integers), numpy's and torch's take together."""


@dataclass(slots=True, eq=False)
class KeptBatch:
    """One batch, and what fetching it did to the random generators."""

    copy: HostCopy
    random_state: RandomState | None
    """Where the generators stood afterwards; None where fetching it drew nothing."""
    step: int
    """The step it was last used for, as the global step after its update."""
    number: int
    """Which batch of its epoch's loader it is, counted from zero."""

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.copy.nbytes + (0 if self.random_state is None else RANDOM_STATE_BYTES)


@dataclass(slots=True, eq=False)
class EpochData:
    """The batches of one epoch as far as they are kept, and the loader's iterator that the rest comes from."""

    call: dict[str, Any]
    """What the epoch was run with; only its number where the loop does not say more."""
    first_step: int
    """Global step when the epoch was entered."""
    steps_before: int
    """Steps of this epoch that were trained before `train()` was entered."""
    batches: deque[KeptBatch] = field(default_factory=deque)
    dropped: int = 0
    """Batches at the beginning of the epoch that are no longer kept: the place of the first that is."""
    position: int = 0
    """Place of the batch that is handed out next."""
    window: int = 0
    """Place of the first batch of the step that was fetched last."""
    silent_until: int = 0
    """Batches before this place leave the generators alone: the restored state was taken after they were fetched."""
    live: Iterator[Any] | None = None
    owed: int = 0
    """Batches that were left out, and are replaced by others when the loader has no more."""
    reused: int = 0
    """Batches that have taken the place of others."""
    is_broken: bool = False
    """The loader has raised: its iterator is over and cannot say where it stood, so that nothing follows what is kept."""
    left_out_next: int = 0
    """Batches that are left out when the loader is next asked."""
    read: int = 0
    """Batches that the loader has passed by, be it that they were skipped when training was entered."""
    is_unread: bool = True
    """The loader was not asked for anything yet."""
    wanted_from: int = 0
    """The first batch that is wanted: those before it were trained on before training was entered anew."""
    window_number: int | None = None
    """Which batch of the loader the step that was fetched last begins with; None where that one was used before."""
    start: EpochStart | None = None
    forgets_iterating: bool = False
    """That its loader was iterated over must not show in the random generators."""
    loader: Any = None
    """What the epoch's data come from; read once more where so much was left out that what is kept is too little."""
    again: Iterator[Any] | None = None
    between: Callable[[], None] | None = None
    """Does once more what was done between the epoch before it and this one, where both are run again."""

    @property
    def random_before(self) -> RandomState | None:
        """Where the generators stood before the epoch was entered: a resume at its beginning puts them there."""
        return None if self.start is None else self.start.random_state

    @property
    def number(self) -> int:
        """Which epoch it is, counted from zero."""
        return int(self.call["epoch"])

    @property
    def end(self) -> int:
        """The place behind the last batch that is kept."""
        return self.dropped + len(self.batches)

    @property
    def length(self) -> int:
        """How many batches it has; 0 where its loader does not know."""
        try:
            return len(self.loader)
        except TypeError:
            return 0

    @property
    def was_begun(self) -> bool:
        """Say whether a batch was asked for, be it left out since: the loader's iterator cannot be made a second time."""
        return self.live is not None or self.end > 0 or self.owed > 0

    def is_over(self) -> None:
        """Let go of the loader's iterator; persistent workers would deliver the next epoch's data through it."""
        self.live = self.again = None

    def close(self) -> None:
        """End the loader's iterator now, and its workers with it.

        The frames of an exception hold on to it as well. One that goes only when garbage is collected has lost the queues
        by which it tells its workers to end, and waits five seconds for each of them.
        """
        for iterator in (self.live, self.again):
            if isinstance(iterator, GeneratorType) and not iterator.gi_running:
                iterator.close()
        self.is_over()
        self.loader = None

    def rewind(self, place: int, *, silent_until: int) -> None:
        """Hand out the batches from a place on once more."""
        assert self.dropped <= place <= self.end, "these batches are no longer kept"
        self.position, self.silent_until = place, silent_until


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data stand before a step: the epoch, and the first batch of that step."""

    epoch: EpochData
    index: int
    fetched: int
    """Batches of the step that had been fetched already."""
    number: int | None = None
    """Which batch of the loader the step begins with; None where a new loader could not be brought there."""
    steps: int = 0
    """Steps of the epoch before it."""
    owed: int = 0


class DataWindows:
    """All kept batches, within a number of bytes; the oldest are given up first."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self.epochs: list[EpochData] = []
        self.left_out: set[tuple[int, int]] = set()
        """Batches that are left out for good, by epoch and number: also where training is entered anew before them."""
        self._used: dict[int, list[tuple[int, int]]] = {}
        """The batches of each step by epoch and number, also of those whose data are no longer kept."""

    def begin(self) -> None:
        """Forget everything: training has ended, or was entered anew with a loader of its own."""
        for epoch in self.epochs:
            epoch.close()
        self.epochs.clear()
        self.nbytes = 0

    def begin_epoch(self, call: dict[str, Any], *, first_step: int, steps_before: int) -> EpochData:
        """Return the data of an epoch that begins."""
        epoch = EpochData(call, first_step, steps_before)
        if self.epochs:  # what was to be left out may go beyond the end of an epoch
            epoch.left_out_next, self.epochs[-1].left_out_next = self.epochs[-1].left_out_next, 0
        self.epochs.append(epoch)
        return epoch

    def holds(self, place: Place) -> bool:
        """Say whether every batch since then is still kept."""
        if any(epoch.is_broken for epoch in self.epochs):
            return False
        return any(epoch is place.epoch for epoch in self.epochs) and place.index >= place.epoch.dropped

    def forget_before(self, place: Place) -> None:
        """Let go of what nobody can return to."""
        while self.epochs and self.epochs[0] is not place.epoch:
            self._forget(self.epochs[0], len(self.epochs[0].batches))
            self.epochs.pop(0)
        self._forget(place.epoch, place.index - place.epoch.dropped)

    def begin_window(self, epoch: EpochData, step: int) -> None:
        """Begin to hand out the data of a step."""
        epoch.window, epoch.window_number = epoch.position, None
        self._used.pop(step, None)
        while len(self._used) >= MOST_STEPS:
            del self._used[next(iter(self._used))]

    def leave_out_after_restart(self, steps: Iterable[int], *, more: int) -> int:
        """Leave the batches of these steps and some that follow out when training is entered anew before them."""
        harmful = [batch for step in sorted(steps) for batch in self._used.get(step, ())]
        if harmful:
            epoch, last = max(harmful)
            length = next((each.length for each in self.epochs if each.number == epoch), 0)
            harmful += that_follow((epoch, last + 1), more, length)
        self.left_out.update(harmful)
        return len(harmful)

    def leave_out(self, place: Place, steps: Iterable[int], *, more: int = 0) -> int:
        """Leave the batches of these steps out for good, as far as they come after a place; return how many.

        With `more`, so many that follow them are left out as well, be they kept from an earlier pass or not fetched yet.
        Others take their place: what follows, and at the end of an epoch what is kept of it or of others, for the number
        of steps and the schedule stay as planned.
        """
        steps, left_out = set(steps), 0
        epochs = self.epochs[self._index(place.epoch) :]
        kept = [
            batch
            for epoch in epochs
            for batch in islice(epoch.batches, place.index - epoch.dropped if epoch is place.epoch else 0, None)
        ]
        last = max((index for index, batch in enumerate(kept) if batch.step in steps), default=len(kept) - 1)
        following = kept[last + 1 : last + 1 + more]
        named = [*following, *(batch for batch in kept if batch.step in steps)]
        copies = {id(batch.copy) for batch in named}  # which may have taken the place of others, too
        harmful = {id(b) for b in (*named, *(b for b in kept if b.number < 0 and id(b.copy) in copies))}
        for epoch in epochs:
            gone = [batch for batch in epoch.batches if id(batch) in harmful]
            epoch.batches = deque(batch for batch in epoch.batches if id(batch) not in harmful)
            epoch.owed += len(gone)
            self.nbytes -= sum(batch.nbytes for batch in gone)
            self.left_out.update((epoch.number, batch.number) for batch in gone)
            left_out += len(gone)
        still = more - len(following)
        self.epochs[-1].left_out_next += still
        return left_out + still

    def pass_by(self, epoch: EpochData, number: int) -> None:
        """Read so many batches of an epoch that were trained on before."""
        while epoch.read < number:
            try:
                self._read(epoch)
            except StopIteration:
                return

    def place_before_the_next(self, epoch: EpochData, steps: int) -> Place:
        """Return where the data stand between two steps, with nothing of the next one fetched."""
        number: int | None = epoch.read
        if epoch.position < epoch.end:
            kept = epoch.batches[epoch.position - epoch.dropped].number
            number = kept if kept >= 0 else None
        return Place(epoch, epoch.position, 0, number, steps, epoch.owed)

    def epoch_after(self, epoch: EpochData) -> EpochData | None:
        """Return the epoch that was run next, None behind the newest."""
        following = self.epochs[self._index(epoch) + 1 :]
        return following[0] if following else None

    def next_batch(self, epoch: EpochData, step: int) -> Any:
        """Return the next batch for a step: one that is kept, else one from the loader; end as the loader ends."""
        from ...tensors.random_state import RandomState

        if epoch.position < epoch.end:
            return self._again(epoch, step)
        # Some loaders draw a number when they are iterated over, which is before anything is asked for.
        before = (epoch.random_before if epoch.is_unread else None) or RandomState.capture()
        try:
            while epoch.left_out_next:
                self._fetch(epoch)
                self.left_out.add((epoch.number, epoch.read - 1))
                epoch.left_out_next -= 1
                epoch.owed += 1
            batch = self._fetch(epoch)
        except StopIteration:
            if not epoch.owed:
                raise
            copy, number = self._instead(epoch), -1
            epoch.owed -= 1
            batch = copy.batch()
        else:
            copy, number = HostCopy(batch), epoch.read - 1
            self._is_used(epoch, step, number)
        after = RandomState.capture()
        self._keep(epoch, KeptBatch(copy, None if before.is_same(after) else after, step, number))
        return batch

    def _again(self, epoch: EpochData, step: int) -> Any:
        kept = epoch.batches[epoch.position - epoch.dropped]
        self._is_used(epoch, step, kept.number)
        epoch.position += 1
        kept.step = step
        batch = kept.copy.batch()
        if kept.random_state is not None and epoch.position > epoch.silent_until:
            kept.random_state.restore()
        return batch

    def _instead(self, epoch: EpochData) -> HostCopy:
        """Return a batch in the place of one that was left out, when the loader has no more."""
        others = self._originals(epoch) or [kept for each in self.epochs for kept in self._originals(each)]
        if epoch.again is not None or not others:
            epoch.again = epoch.again or self._from_its_start(epoch)
            try:
                return HostCopy(_next(epoch, epoch.again))
            except StopIteration:  # it cannot be read once more
                others = others or list(epoch.batches)
                if not others:
                    raise
        kept = others[epoch.reused % len(others)]
        epoch.reused += 1
        return kept.copy

    @staticmethod
    def _originals(epoch: EpochData) -> list[KeptBatch]:
        """Return what is kept of an epoch, without what has taken the place of others in it."""
        return [kept for kept in epoch.batches if kept.number >= 0]

    def _is_used(self, epoch: EpochData, step: int, number: int) -> None:
        if number < 0:  # used before, in the place of one that was left out
            return
        if epoch.position == epoch.window:
            epoch.window_number = number
        self._used.setdefault(step, []).append((epoch.number, number))

    def _fetch(self, epoch: EpochData) -> Any:
        """Take the next batch that is wanted from the loader."""
        while True:
            batch = self._read(epoch)
            if epoch.read <= epoch.wanted_from:
                continue
            if (epoch.number, epoch.read - 1) not in self.left_out:
                return batch
            epoch.owed += 1
            epoch.again = epoch.again or self._from_its_start(epoch)  # entered anew, so that little is kept

    def _read(self, epoch: EpochData) -> Any:
        if epoch.live is None:
            raise StopIteration
        batch = _next(epoch, epoch.live)
        epoch.is_unread = False
        epoch.read += 1
        return batch

    def _from_its_start(self, epoch: EpochData) -> Iterator[Any]:
        """Yield the batches of an epoch over and over; nothing is read before it is asked for.

        Those that are left out too where there are no others: a trainer ends in silence with an epoch that has no data.
        """
        wants_all, passes_by = False, epoch.reused
        while epoch.loader is not None:
            if hasattr(epoch.loader, "set_epoch"):  # else it goes on to another order, and numbers are of other batches
                epoch.loader.set_epoch(epoch.number)
            is_empty = True
            for number, batch in enumerate(epoch.loader):
                if wants_all or (epoch.number, number) not in self.left_out:
                    is_empty, passes_by = False, passes_by - 1
                    if passes_by < 0:
                        yield batch
            if is_empty and wants_all:
                return
            wants_all = wants_all or is_empty

    def _keep(self, epoch: EpochData, batch: KeptBatch) -> None:
        epoch.batches.append(batch)
        epoch.position += 1
        self.nbytes += batch.nbytes
        for oldest in self.epochs:
            while self.nbytes > self.budget_bytes and oldest.batches:
                self._forget(oldest, 1)

    def _forget(self, epoch: EpochData, count: int) -> None:
        for _ in range(count):
            self.nbytes -= epoch.batches.popleft().nbytes
            epoch.dropped += 1

    def _index(self, epoch: EpochData) -> int:
        return next(index for index, each in enumerate(self.epochs) if each is epoch)


def _next(epoch: EpochData, iterator: Iterator[Any]) -> Any:
    """Return the next batch of an epoch's loader; note where that raises, for the iterator would seem to be at its end."""
    try:
        return next(iterator)
    except StopIteration:
        raise
    except BaseException:
        epoch.is_broken = True
        raise
