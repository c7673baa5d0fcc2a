"""Read the records of a batch; one that cannot be read is left out and the next good one takes its place.

Runs where the data loader runs: in the training process or in its workers, forked or spawned. What takes a record's
place depends on the records alone, the next one that is good, and not on which worker looked or what it knew before.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..exceptions import text_of
from .data_errors import may_be_the_record
from .network import Retries
from .quarantine import BadRecord, Limit, NoUsableRecord, TooManyBadRecords, bad_record, content_hash, too_many
from .suspects import Suspect

CHANGED = "record-changed"
RECENT = 32
"""Batches among whose records a row is looked for that the model has raised on."""
PROBES = 8
"""Records from all over the dataset that are tried before a batch that failed as a whole is held against its records."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that was put right on the way and is worth a line in the ledger."""

    name: str
    text: str


@dataclass(slots=True)
class Fetched:
    """The records of a batch on their way to the collator."""

    records: Any
    indices: list[Any]
    """Where they really come from."""
    random_state: Any
    """Where the random generators stood before they were read."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a record: why it could not be read, twice."""

    error: Exception


class RecordReader:
    """Reads one map-style dataset with care, and remembers what it found."""

    def __init__(
        self, dataset: Any, *, name: str, known: dict[int, BadRecord], limit: Limit, retries: Retries, leaves_out: bool
    ) -> None:
        self.dataset = dataset
        self.name = name
        """The dataset's fingerprint."""
        self.total = len(dataset)
        self.leaves_out = leaves_out
        """False only repeats: what fails again is raised."""
        self.remarks: list[Remark] = []
        self._limit = limit
        self._retries = retries
        self._found: list[int] = []
        self._suspects: list[Suspect] = []
        self._recent: deque[list[int]] = deque(maxlen=RECENT)
        of_this = {index: record for index, record in known.items() if index < self.total and record.dataset == name}
        self._bad: dict[int, BadRecord] = {}
        self._unverified = of_this
        """Left out by an earlier attempt: still so unless the data have changed since."""

    # -- reading -------------------------------------------------------------------------------------

    def batch(self, indices: Sequence[Any]) -> Fetched:
        """Read a batch; as the dataset would by itself, where nothing is wrong with it."""
        from ...tensors.random_state import RandomState

        is_clean = not self._bad and not self._unverified
        chosen = list(indices) if is_clean else [self.in_place_of(index) for index in indices]
        start = RandomState.capture()
        try:
            fetched = Fetched(self._with_retries(lambda: self._read(chosen), start), chosen, start)
        except Exception as error:
            if not may_be_the_record(error):
                raise
            first_error = error
        else:
            return self._without_suspects(fetched)
        start.restore()
        return self._without_suspects(self._one_by_one(chosen, start, first_error))

    def one(self, index: Any) -> Any:
        """Read one record, or the one that takes its place."""
        return self.batch([index]).records[0]

    def _read(self, indices: list[Any]) -> Any:
        together = getattr(self.dataset, "__getitems__", None)
        return together(indices) if together else [self.dataset[index] for index in indices]

    def _with_retries(self, read: Callable[[], Any], start: Any) -> Any:
        def before_retry(error: BaseException, retry: int) -> None:
            start.restore()
            self.remarks.append(Remark("network-retried", f"reading data: {_told(error)}; retry {retry}"))

        return self._retries.call(read, before_retry)

    def _one_by_one(self, chosen: list[Any], start: Any, first_error: Exception) -> Fetched:
        """Read records alone to see which of them fail; leave those out and read others in their place."""
        read = [self.alone(index) for index in chosen]
        if not any(isinstance(record, Unreadable) for record in read):
            self.remarks.append(Remark("record-retried", f"reading a batch: {_told(first_error)}; a retry succeeded"))
            return Fetched(read, chosen, start)
        if not self.leaves_out or any(place_of(index) is None for index in chosen):
            raise first_error
        chosen = [operator.index(index) % self.total for index in chosen]
        failed = {
            place: found.error for place, found in zip(chosen, read, strict=True) if isinstance(found, Unreadable)
        }
        if len(failed) == len(set(chosen)):
            self.blame_the_code_if_all_fail(failed, lambda _index, record: not isinstance(record, Unreadable))
        for index, error in failed.items():
            self.leave_out(index, None, error, "dataset")
        for slot, place in enumerate(chosen):
            if isinstance(read[slot], Unreadable):
                instead, record = self._next_good(place)
                chosen[slot], read[slot] = instead, record
                self._remember_witness(instead, record)
        return Fetched(read, chosen, start)

    def _next_good(self, index: int) -> tuple[int, Any]:
        """Return the record that takes the place of a bad one; others that cannot be read are left out on the way."""
        while True:
            candidate = self.in_place_of(index)
            record = self.alone(candidate)
            if not isinstance(record, Unreadable):
                return candidate, record
            self.leave_out(candidate, None, record.error, "dataset")

    def _remember_witness(self, place: int, record: Any) -> None:
        """Note what was used instead of records that have no content to be known by."""
        for index in self._found:
            found = self._bad[index]
            if not found.has_content and self.in_place_of(index) == place:
                self._bad[index] = replace(found, replaced_by=place, witness=content_hash(record))

    def alone(self, index: Any) -> Any:
        """Read one record by itself, twice if need be; return `Unreadable` where both attempts fail."""
        from ...tensors.random_state import RandomState

        start = RandomState.capture()
        error: Exception
        for _ in range(2):
            try:
                return self._with_retries(lambda: self._read([index])[0], start)
            except Exception as raised:
                if not may_be_the_record(raised):
                    raise
                error = raised
            start.restore()
        return Unreadable(error)

    def suspect(self, rows: Sequence[Mapping[str, Any]], error: Exception) -> list[BadRecord]:
        """Leave the records out that have become rows on which the model raises: now, or when they are next drawn.

        Returns what was found now: there may be no further batch to tell of it. Workers that read the data learn of it
        when they are made, at the beginning of an epoch.
        """
        before = len(self._found)
        suspects = [Suspect.of(row, error, self.name) for row in rows]
        self._suspects += suspects
        for index in dict.fromkeys(place for places in self._recent for place in places) if suspects else ():
            record = self.alone(index)
            suspect = next((each for each in suspects if each.is_made_of(record)), None)
            if index not in self._bad and suspect is not None:
                self._list(suspect.listed(index, record))
        found, self._found = self._found[before:], self._found[:before]
        return [self._replaced(self._bad[index]) for index in sorted(found)]

    def known(self, record: BadRecord) -> None:
        """Leave out what a worker has found, also in workers that are made from now on."""
        if self.leaves_out and record.dataset == self.name and 0 <= record.index < self.total:
            self._bad.setdefault(record.index, record)

    def _without_suspects(self, fetched: Fetched) -> Fetched:
        """Read a batch once more without records that the model has raised on, where there are any in it."""
        places = [place_of(index) for index in fetched.indices]
        self._recent.append([place % self.total for place in places if place is not None])
        found = False
        for suspect in self._suspects if self.leaves_out else ():
            for place, record in zip(places, fetched.records, strict=True):
                if place is not None and place % self.total not in self._bad and suspect.is_made_of(record):
                    self._list(suspect.listed(place % self.total, record))
                    found = True
        if not found:
            return fetched
        fetched.random_state.restore()
        return self.batch(fetched.indices)

    # -- leaving out ---------------------------------------------------------------------------------

    def in_place_of(self, index: Any) -> Any:
        """Return a record's place if it is good as far as is known, else that of the next good one."""
        place = place_of(index)
        if place is None:
            return index
        for step in range(self.total):
            candidate = (place + step) % self.total
            if candidate in self._unverified:
                self._verify(candidate)
            if candidate not in self._bad:
                return candidate if step else index
        raise NoUsableRecord(
            f"every one of the {self.total} records is on the list of bad records; nothing to train on"
        )

    def _verify(self, index: int) -> None:
        """Look whether a record is the one that was left out by an earlier attempt; draws no random numbers."""
        from ...tensors.random_state import RandomState

        before = RandomState.capture()
        listed = self._unverified.pop(index)
        is_same = self._is_the_same(index, listed)
        before.restore()
        if is_same:
            self._bad[index] = listed
        else:
            self.remarks.append(Remark(CHANGED, f"record {index} has changed since it was left out: used again"))

    def _is_the_same(self, index: int, listed: BadRecord) -> bool:
        if not listed.has_content and listed.witness and listed.replaced_by in range(self.total):
            witness = self.alone(listed.replaced_by)
            if not isinstance(witness, Unreadable) and content_hash(witness) == listed.witness:
                return True
        # Nothing else says that these are the same data: the record itself has to.
        record = self.alone(index)
        return isinstance(record, Unreadable) or (listed.has_content and content_hash(record) == listed.hash)

    def leave_out(self, index: int, record: Any, error: Exception, where: str) -> None:
        """Put a record on the list.

        Raises:
            TooManyBadRecords: more records are bad than may be left out.

        """
        has_content = record is not None
        self._list(
            bad_record(
                index=index, record=record, dataset=self.name, where=where, error=error, has_content=has_content
            ),
            error,
        )

    def _list(self, bad: BadRecord, error: Exception | None = None) -> None:
        self._bad[bad.index] = bad
        self._found.append(bad.index)
        # Workers read ahead of what is used, and the training process counts that; here, looking for others must end.
        counted = len(self._bad) // (1 if _is_training_process() else 2)
        if not self._limit.allows(counted, self.total):
            found = tuple(self._bad[index] for index in self._found)
            raise TooManyBadRecords(too_many(self._bad.values(), self.total, self._limit, None), found) from error

    def blame_the_code_if_all_fail(self, failed: dict[int, Exception], is_good: Callable[[int, Any], bool]) -> None:
        """Raise the error itself where records from all over the dataset fail too: that is no record's fault."""
        probed = [(index, self.alone(index)) for index in self.probes(set(failed))]
        good = sum(is_good(index, record) for index, record in probed)
        if 2 * good > len(probed):
            return
        error = next(iter(failed.values()))
        if not probed:
            error.add_note(
                f"self-healing: each of the {len(failed)} record{'s that there are' if len(failed) > 1 else ' that there is'} "
                "fails: it cannot be said whether the records or the code is to blame, and nothing could take their place. "
                "Nothing was left out."
            )
            raise error
        error.add_note(
            f"self-healing: all {len(failed)} records of the batch fail, and {len(probed) - good} of {len(probed)} others "
            "tried: this is the code of the dataset or collator, or its settings, and not the records. Nothing was "
            "left out; correct the code."
        )
        raise error

    def probes(self, without: set[int]) -> Iterator[int]:
        """Yield a few places spread over the dataset."""
        spread = dict.fromkeys(self.total * (2 * part + 1) // (2 * PROBES) for part in range(PROBES))
        return itertools.islice((index for index in spread if index not in without and index not in self._bad), PROBES)

    def take_found(self) -> tuple[BadRecord, ...]:
        """Return what was left out since the last call, in the order of places, with what is used instead."""
        found, self._found = sorted(self._found), []
        return tuple(self._replaced(self._bad[index]) for index in found)

    def _replaced(self, record: BadRecord) -> BadRecord:
        """Say what is used in the place of a record by now."""
        place = self.in_place_of(record.index)
        return replace(record, replaced_by=place, witness=record.witness if place == record.replaced_by else "")

    def listed(self) -> list[int]:
        """Return the places that earlier attempts have left out, as far as is known without reading them."""
        return sorted(self._unverified)

    def take_remarks(self) -> tuple[Remark, ...]:
        """Return what was remarked since the last call."""
        taken, self.remarks = tuple(self.remarks), []
        return taken


class GuardedRecords:
    """A map-style dataset in the place of the original in one data loader; everything else is the original's own."""

    def __init__(self, reader: RecordReader) -> None:
        self.guarding = reader

    def __getitems__(self, indices: Sequence[Any]) -> Fetched:
        return self.guarding.batch(indices)

    def __getitem__(self, index: Any) -> Any:
        return self.guarding.one(index)

    def __len__(self) -> int:
        return len(self.guarding.dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.guarding.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "guarding":  # a copy under construction has no reader yet
            raise AttributeError(name)
        return getattr(self.guarding.dataset, name)


def _is_training_process() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is None


def place_of(index: Any) -> int | None:
    """Return an index of a sampler as a plain number, or None for a key of another kind."""
    try:
        return operator.index(index)
    except TypeError:
        return None


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"[:200]
