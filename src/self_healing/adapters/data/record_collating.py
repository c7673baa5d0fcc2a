"""Collate batches; a record that makes the collator fail is found, left out and replaced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..exceptions import text_of
from .culprits import Trial, collated, failing_alone, odd_ones_out, trial_of
from .data_errors import may_be_the_record
from .delivery import Deliver
from .record_reading import Fetched, RecordReader, Remark, Unreadable, place_of


class GuardedCollator:
    """A collator in the place of the original in the data loader of a map-style dataset."""

    def __init__(self, collate: Callable[[Any], Any], reader: RecordReader, deliver: Deliver) -> None:
        self._collate = collate
        self._reader = reader
        self._deliver = deliver

    def __call__(self, fetched: Any) -> Any:
        """Collate as the original does, or once more without the records it fails on."""
        if not isinstance(fetched, Fetched):  # a loader without batches hands on single records
            return self._deliver(self._collate(fetched), self._reader)
        try:
            batch = collated(self._collate, fetched.records)
        except Exception as error:
            if not may_be_the_record(error):
                raise
            first_error = error
        else:
            return self._deliver(batch, self._reader)
        return self._deliver(self._again(fetched, first_error), self._reader)

    def _again(self, fetched: Fetched, error: Exception) -> Any:
        """Repeat the batch from the start, then without the records it fails on, until it is whole."""
        reader, start, indices = self._reader, fetched.random_state, fetched.indices
        is_retry = True
        while True:
            start.restore()
            fetched = reader.batch(indices)  # read again: a collator may have taken the records apart
            try:
                batch = collated(self._collate, fetched.records)
            except Exception as raised:
                if not may_be_the_record(raised):
                    raise
                error = raised
            else:
                if is_retry:
                    text = f"collating a batch: {type(error).__name__}: {text_of(error)}"[:200]
                    reader.remarks.append(Remark("record-retried", f"{text}; a retry succeeded"))
                return batch
            is_retry = False
            self._leave_out_culprits(reader.batch(fetched.indices), error)
            indices = [reader.in_place_of(index) for index in fetched.indices]

    def _leave_out_culprits(self, fetched: Fetched, error: Exception) -> None:
        """Find out which records of a batch the collator fails on.

        Raises:
            Exception: the collator's own error, where it is no record's fault.

        """
        reader, indices = self._reader, fetched.indices
        if not reader.leaves_out or any(place_of(index) is None for index in indices):
            raise error
        by_index = {
            operator.index(i) % reader.total: record for i, record in zip(indices, fetched.records, strict=True)
        }
        places, records = list(by_index), list(by_index.values())
        trial = trial_of(self._collate)
        alone = failing_alone(records, trial)
        if len(alone) == len(records):
            failed = {places[place]: raised for place, raised in alone.items()}
            reader.blame_the_code_if_all_fail(
                failed, lambda _index, record: not isinstance(record, Unreadable) and trial([record]) is None
            )
        culprits = alone or dict.fromkeys(self._odd(records, places, trial) or (), error)
        if not culprits:
            error.add_note(
                "self-healing: the collator fails on this batch, but no record of it stands out: the collator or its "
                "settings are wrong (padding, truncation), and not the records. Nothing was left out."
            )
            raise error
        for place, raised in culprits.items():
            reader.leave_out(places[place], records[place], raised, "collator")

    def _odd(self, records: list[Any], places: list[int], trial: Trial) -> list[int] | None:
        """Return the records that do not go with most others, of the batch or, where it is divided, of the dataset."""
        odd = odd_ones_out(records, trial)
        if odd is not None:
            return odd
        others = (self._reader.alone(index) for index in self._reader.probes(set(places)))
        references = [record for record in others if not isinstance(record, Unreadable)]
        return odd_ones_out(records, trial, references) if references else None
