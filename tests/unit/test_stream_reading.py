"""Reading a stream: what is passed over, what is taken instead, and where it ends."""

from __future__ import annotations

import pytest

from self_healing.adapters.data.delivery import Deliver, Inbox
from self_healing.adapters.data.network import Retries
from self_healing.adapters.data.stream_reading import StreamCollator, StreamReader

pytestmark = pytest.mark.torch


class Numbers:
    """Counts up; an iterator that can go on after it has raised."""

    def __init__(self, size=12, bad=(), error=ValueError):
        self.size, self.bad, self.error, self.place = size, set(bad), error, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.place += 1
        if self.place >= self.size:
            raise StopIteration
        if self.place in self.bad:
            raise self.error(f"record {self.place}")
        return {"x": self.place}


def reader_of(dataset, **given):
    return StreamReader(dataset, name="numbers", retries=Retries(base_s=0.0), **{"leaves_out": True, **given})


def places(reader):
    return [record.index for record in reader.take_found()]


def apart(records):
    """Collate by taking the records apart, which fails on two of them."""
    numbers = [record.pop("x") for record in records]
    if any(number in (1, 4) for number in numbers):
        raise ValueError("not this one")
    return {"x": numbers}


def collated(collate, dataset, count):
    reader = reader_of(dataset)
    inbox = Inbox()
    inbox.open()
    source = reader.begin()
    records = [next(source) for _ in range(count)]
    batch = StreamCollator(collate, reader, Deliver(inbox.address, moves_batches=False))(records)
    findings = inbox.take()
    inbox.close()
    return batch, findings, source


def test_records_that_raise_are_passed_over_and_named_by_their_place():
    reader = reader_of(Numbers(bad={3, 4, 7}))
    assert [record["x"] for record in reader.begin()] == [0, 1, 2, 5, 6, 8, 9, 10, 11]
    assert places(reader) == [3, 4, 7]


def test_a_record_that_raises_at_the_very_end_is_named_too():
    reader = reader_of(Numbers(size=4, bad={3}))
    assert [record["x"] for record in reader.begin()] == [0, 1, 2]
    assert places(reader) == [3]


def test_nothing_is_passed_over_where_nothing_may_be_left_out():
    reader = reader_of(Numbers(bad={3}), leaves_out=False)
    with pytest.raises(ValueError, match="record 3"):
        list(reader.begin())
    assert places(reader) == []


@pytest.mark.parametrize("error", [MemoryError, NameError])
def test_what_no_record_can_cause_is_raised(error):
    with pytest.raises(error):
        list(reader_of(Numbers(bad={3}, error=error)).begin())


def test_a_lost_connection_of_an_iterator_that_goes_on_costs_nothing_but_the_retry():
    reader = reader_of(Numbers(bad={3, 4}, error=TimeoutError))
    assert [record["x"] for record in reader.begin()][:4] == [0, 1, 2, 5]
    assert places(reader) == []
    assert [remark.name for remark in reader.take_remarks()] == ["network-retried"] * 2


def test_a_generator_is_opened_anew_once_and_goes_on_where_it_was():
    failures = [ValueError("once")]

    class Generating:
        def __iter__(self):
            for number in range(6):
                if number == 3 and failures:
                    raise failures.pop()
                yield {"x": number}

    reader = reader_of(Generating())
    assert [record["x"] for record in reader.begin()] == list(range(6))
    assert places(reader) == []
    assert [remark.name for remark in reader.take_remarks()] == ["stream-opened-anew"]


def test_the_collator_gets_the_next_records_in_the_place_of_those_it_fails_on():
    batch, (findings,), source = collated(apart, Numbers(), 4)
    assert batch == {"x": [0, 2, 3, 5]}
    assert sorted(record.index for record in findings.records) == [1, 4]
    assert findings.total == 6
    assert next(source)["x"] == 6


def test_at_the_end_of_the_stream_the_batch_is_smaller():
    opened = []

    class Generating:
        def __iter__(self):
            opened.append(1)
            yield from ({"x": number} for number in range(4))

    batch, (findings,), source = collated(apart, Generating(), 4)
    assert batch == {"x": [0, 2, 3]}
    assert [record.index for record in findings.records] == [1]
    assert list(source) == []
    assert len(opened) == 1, "it is not begun anew"


def test_a_batch_that_is_collated_again_draws_the_same_random_numbers():
    import torch

    failures = [ValueError("once")]

    def drawing(records):
        number = torch.rand(()).item()
        if failures:
            raise failures.pop()
        return {"x": number}

    torch.manual_seed(3)
    batch, (findings,), _ = collated(drawing, Numbers(), 4)
    torch.manual_seed(3)
    assert batch == collated(drawing, Numbers(), 4)[0]
    assert [remark.name for remark in findings.remarks] == ["record-retried"]


def test_a_batch_in_which_nobody_stands_out_is_the_collators_fault():
    def never(records):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        collated(never, Numbers(), 4)
    assert "nothing was left out" in caught.value.__notes__[0]
