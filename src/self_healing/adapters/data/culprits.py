"""Try records in a collator, and find those that make it fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .data_errors import may_be_the_record

Trial = Callable[[list[Any]], Exception | None]
"""Collates records for a test and returns what was raised, if anything."""


LABELS = ("labels", "label", "label_ids")


class LabelsDropped(ValueError):
    """A collator has left the labels out, as transformers' own does where the first record of a batch has none."""


class EmptyBatch(ValueError):
    """A collator has made a batch of nothing, as transformers' own does where the first record has no columns."""


def collated(collate: Callable[[Any], Any], records: Any) -> Any:
    """Return the batch of some records.

    Raises:
        EmptyBatch: there is nothing in it that a model could be trained on.
        LabelsDropped: it has no labels, and only some of its records have none.
        Exception: whatever the collator raises.

    """
    batch = collate(records)
    if isinstance(batch, Mapping) and not batch:
        raise EmptyBatch("the collator made an empty batch")
    if isinstance(batch, Mapping) and not any(name in batch for name in LABELS):
        labelled = sum(_has_labels(record) for record in records)
        if 0 < labelled < len(records):
            raise LabelsDropped(
                f"the collator made a batch without labels, which {labelled} of {len(records)} records have"
            )
    return batch


def _has_labels(record: Any) -> bool:
    return isinstance(record, Mapping) and any(record.get(name) is not None for name in LABELS)


def trial_of(collate: Callable[[Any], Any]) -> Trial:
    """Return a trial of a collator that leaves the records as they are."""

    def trial(records: list[Any]) -> Exception | None:
        try:
            collated(collate, [copy.copy(record) for record in records])
        except Exception as error:
            if not may_be_the_record(error):
                raise
            return error
        return None

    return trial


def failing_alone(records: Sequence[Any], trial: Trial) -> dict[int, Exception]:
    """Return the places of the records that fail all by themselves, with their errors."""
    tried = ((place, trial([record])) for place, record in enumerate(records))
    return {place: error for place, error in tried if error is not None}


def odd_ones_out(records: Sequence[Any], trial: Trial, references: Sequence[Any] = ()) -> list[int] | None:
    """Return the places of the records that do not go together with most of the others.

    Each record is tried with one of each group found so far, so that the cost is the number of records times the
    number of groups. None where no group has a majority, or where all go together two by two: then nobody stands out.
    """
    pool = [*records, *references]
    groups: list[list[int]] = []
    for place, record in enumerate(pool):
        for group in groups:
            if trial([pool[group[0]], record]) is None:
                group.append(place)
                break
        else:
            groups.append([place])
    groups.sort(key=len, reverse=True)
    largest = set(groups[0])
    odd = [place for place in range(len(records)) if place not in largest]
    return odd if odd and 2 * len(largest) > len(pool) else None
