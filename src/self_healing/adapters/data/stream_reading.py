"""Read an iterable dataset; a record that raises is passed over where the iterator can go on.

A generator is over once it has raised. It is opened anew and taken to where it was: that helps where the trouble
has passed, such as a lost connection, and is exact where the stream gives the same records each time.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ..exceptions import text_of
from .culprits import collated, failing_alone, odd_ones_out, trial_of
from .data_errors import may_be_the_record
from .delivery import Deliver
from .network import Retries
from .quarantine import BadRecord, bad_record
from .record_reading import Remark

MOST_IN_A_ROW = 8
"""Records that may raise one after the other; beyond that it is the stream's code and no record."""


class StreamReader:
    """Reads one iterable dataset with care, and remembers what it found."""

    def __init__(self, dataset: Any, *, name: str, retries: Retries, leaves_out: bool) -> None:
        self.dataset = dataset
        self.name = name
        self.leaves_out = leaves_out
        self.remarks: list[Remark] = []
        self.recent: list[int] = []
        """The places of the records given out since the last batch was collated."""
        self._retries = retries
        self._found: list[BadRecord] = []
        self._source: Iterator[Any] = iter(())
        self._is_at_its_end = False
        self._taken = 0
        self._passed_over = 0

    @property
    def total(self) -> int:
        """How many records were seen so far; a stream has no other size."""
        return self.place()

    def begin(self) -> Iterator[Any]:
        """Start to read from the beginning."""
        self._source = iter(self.dataset)
        self._is_at_its_end = False
        self._taken = self._passed_over = 0
        self.recent = []
        return _Records(self)

    def next(self) -> Any:
        """Return the next record that can be read.

        Raises:
            StopIteration: the stream is at its end.
            Exception: the stream's own error, where it cannot go on.

        """
        raised: list[Exception] = []
        while True:
            try:
                record = self._retries.call(self._take, self._before_retry)
            except StopIteration:
                self._is_at_its_end = True
                self._note(raised)
                raise
            except Exception as error:  # noqa: BLE001  # noted once others can be read, else raised again
                raised.append(error)
                self._go_on_after(raised)
            else:
                break
        self._note(raised)
        self.recent.append(self.place())
        self._taken += 1
        return record

    def place(self) -> int:
        """Return the number of the next record, different in each worker."""
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        here = self._taken + self._passed_over
        return here if worker is None else here * worker.num_workers + worker.id

    def _take(self) -> Any:
        if self._is_at_its_end:
            raise StopIteration
        if self._is_over():
            self._open_anew()
        return next(self._source)

    def _is_over(self) -> bool:
        """Say whether the source is a generator that has raised: it would only claim to be at its end."""
        return inspect.isgenerator(self._source) and self._source.gi_frame is None

    def _open_anew(self) -> None:
        from ...tensors.random_state import RandomState

        before = RandomState.capture()
        self._source = iter(self.dataset)
        for _ in itertools.islice(self._source, self._taken):
            pass
        before.restore()
        self.remarks.append(
            Remark("stream-opened-anew", f"the stream was opened anew and taken to record {self._taken}")
        )

    def _before_retry(self, error: BaseException, retry: int) -> None:
        text = f"reading data: {type(error).__name__}: {text_of(error)}"[:200]
        self.remarks.append(Remark("network-retried", f"{text}; retry {retry}"))

    def _go_on_after(self, raised: list[Exception]) -> None:
        """Prepare for the next record, or raise where there cannot be one."""
        error = raised[-1]
        if not may_be_the_record(error):
            raise error
        if self._is_over():
            if len(raised) > 1:  # opened anew once, and the same again
                error.add_note(
                    f"self-healing: record {self._taken} of the stream raises each time, and a generator cannot go on "
                    "after that. Catch the error inside the generator, repair the record, or use a map-style dataset."
                )
                raise error
            return
        if not self.leaves_out:
            raise error
        if len(raised) > MOST_IN_A_ROW:
            error.add_note(
                f"self-healing: {len(raised)} records in a row raise: this is the code of the stream and not the records. "
                "Nothing was left out; correct the code."
            )
            raise error

    def _note(self, raised: list[Exception]) -> None:
        """List the records that were passed over, once it is known that others can be read."""
        if inspect.isgenerator(self._source):  # it was opened anew and gave the record after all
            return
        for error in raised:
            self.leave_out(self.place(), None, error, "stream")
            self._passed_over += 1

    def leave_out(self, place: int, record: Any, error: Exception, where: str) -> None:
        """Put a record on the list."""
        has_content = record is not None
        found = bad_record(
            index=place, record=record, dataset=self.name, where=where, error=error, has_content=has_content
        )
        self._found.append(found)

    def take_found(self) -> tuple[BadRecord, ...]:
        """Return what was left out since the last call."""
        found, self._found = tuple(self._found), []
        return found

    def take_remarks(self) -> tuple[Remark, ...]:
        """Return what was remarked since the last call."""
        taken, self.remarks = tuple(self.remarks), []
        return taken


class _Records:
    """The iterator a data loader gets."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._reader.next()


class StreamCollator:
    """A collator in the place of the original in the data loader of a stream."""

    def __init__(self, collate: Callable[[Any], Any], reader: StreamReader, deliver: Deliver) -> None:
        self._collate = collate
        self._reader = reader
        self._deliver = deliver

    def __call__(self, records: Any) -> Any:
        """Collate as the original does; a record it fails on is left out and the next one of the stream taken."""
        from ...tensors.random_state import RandomState

        start = RandomState.capture()
        places, self._reader.recent = self._reader.recent, []
        is_known = isinstance(records, list) and len(places) == len(records)
        kept = [copy.copy(record) for record in records] if is_known else []
        try:
            return self._deliver(collated(self._collate, records), self._reader)
        except Exception as error:
            if not is_known or not may_be_the_record(error):
                raise
        is_retry = True
        while True:
            start.restore()
            try:  # of copies: a collator may take the records apart
                batch = collated(self._collate, [copy.copy(record) for record in kept])
            except Exception as error:
                if not may_be_the_record(error):
                    raise
                failure = error
            else:
                if is_retry:
                    self._reader.remarks.append(Remark("record-retried", "collating a batch: a retry succeeded"))
                return self._deliver(batch, self._reader)
            is_retry = False
            self._replace_culprits(kept, places, failure)

    def _replace_culprits(self, records: list[Any], places: list[int], error: Exception) -> None:
        reader, trial = self._reader, trial_of(self._collate)
        alone = failing_alone(records, trial)
        culprits = alone or dict.fromkeys(odd_ones_out(records, trial) or (), error)
        if not reader.leaves_out or not culprits or len(culprits) == len(records):
            error.add_note("self-healing: no record of this batch stands out; nothing was left out")
            raise error
        for place in sorted(culprits, reverse=True):
            reader.leave_out(places[place], records[place], culprits[place], "collator")
            del records[place], places[place]
        for _ in culprits:
            try:
                records.append(reader.next())
            except StopIteration:
                break
            places.append(reader.recent.pop())
