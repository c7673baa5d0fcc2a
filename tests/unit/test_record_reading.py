"""Reading the records of a batch: what takes the place of a bad one, and what is only repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from self_healing.adapters.data.network import Retries
from self_healing.adapters.data.quarantine import BadRecord, Limit, NoUsableRecord, TooManyBadRecords, bad_record
from self_healing.adapters.data.record_reading import GuardedRecords, RecordReader

pytestmark = pytest.mark.torch


class Rows:
    """Records that are their own index; some raise, and each draws a random number."""

    column_names = ("x",)

    def __init__(self, size=40, bad=()):
        self.size, self.bad, self.reads = size, set(bad), []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        import torch

        self.reads.append(index)
        noise = torch.rand(()).item()
        if index in self.bad:
            raise ValueError(f"record {index}")
        return {"x": index, "noise": noise * 0}


def reader_of(rows, known=(), **given):
    listed = {record.index: record for record in known}
    options = {"limit": Limit(), "retries": Retries(base_s=0.0), "leaves_out": True, **given}
    return RecordReader(rows, name="rows", known=listed, **options)


def listed(index, record, *, dataset="rows") -> BadRecord:
    has_content = record is not None
    return bad_record(
        index=index, record=record, dataset=dataset, where="collator", error=ValueError("x"), has_content=has_content
    )


def taken(fetched):
    return [record["x"] for record in fetched.records]


def test_the_next_good_record_takes_the_place_and_after_the_last_comes_the_first():
    reader = reader_of(Rows(bad={0, 5, 6, 39}))
    fetched = reader.batch([4, 5, 39, 7])
    assert taken(fetched) == fetched.indices == [4, 7, 1, 7]
    found = [(record.index, record.replaced_by) for record in reader.take_found()]
    assert found == [(0, 1), (5, 7), (6, 7), (39, 1)], "in the order of places"
    assert reader.take_found() == ()
    again = reader.batch([4, 5, 39, 7])
    assert taken(again) == [4, 7, 1, 7]
    assert reader.dataset.reads[-4:] == [4, 7, 1, 7], "what is known is not tried again"
    assert reader.take_found() == ()


def test_a_listed_record_is_left_out_while_its_content_is_the_same():
    rows = Rows()
    same, other = {"x": 5, "noise": 0.0}, {"x": 5, "noise": 1.0}
    assert taken(reader_of(rows, [listed(5, same)]).batch([5])) == [6]
    assert taken(reader_of(rows, [listed(5, other)]).batch([5])) == [5]
    assert taken(reader_of(rows, [listed(5, same, dataset="another")]).batch([5])) == [5]
    assert taken(reader_of(rows, [listed(99, same)]).batch([5])) == [5], "the dataset has become smaller"


def test_a_record_without_content_is_known_by_what_was_used_instead():
    class Others(Rows):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "x": -index}

    first = reader_of(Rows(bad={5, 6}))
    first.batch([4, 5])
    found = first.take_found()
    assert [(record.replaced_by, record.witness == found[0].witness != "") for record in found] == [(7, True)] * 2
    flaky = Rows()
    assert taken(reader_of(flaky, found).batch([5])) == [7], "it can be read by now, but the run has left it out"
    assert 5 not in flaky.reads
    assert taken(reader_of(Others(), found).batch([5])) == [-5], "other data of the same kind and size"
    assert taken(reader_of(Others(bad={5}), found).batch([5])) == [-6]
    unknown = [replace(record, witness="") for record in found]
    assert taken(reader_of(Rows(), unknown).batch([5])) == [5], "nothing says that these are the same data"
    assert taken(reader_of(Rows(bad={5}), unknown).batch([5])) == [6]


def test_looking_at_a_listed_record_draws_no_random_numbers():
    import torch

    before = torch.get_rng_state()
    reader = reader_of(Rows(), [listed(5, {"x": 5, "noise": 0.0})])
    assert reader.in_place_of(5) == 6
    assert reader.dataset.reads == [5]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dataset_that_reads_whole_batches_is_asked_for_whole_batches():
    class Together(Rows):
        def __getitems__(self, indices):
            self.asked = [*getattr(self, "asked", []), list(indices)]
            return [self[index] for index in indices]

    reader = reader_of(Together(bad={5}))
    assert taken(reader.batch([3, 4])) == [3, 4]
    assert reader.dataset.asked == [[3, 4]]
    assert taken(reader.batch([4, 5])) == [4, 6]
    assert taken(reader.batch([4, 5])) == [4, 6]
    assert reader.dataset.asked[-1] == [4, 6]


def test_looking_for_a_good_record_has_an_end():
    reader = reader_of(Rows(320, bad=range(1, 200)))
    with pytest.raises(TooManyBadRecords, match="11 of 320"):
        reader.batch([0, 1])
    assert len(reader.dataset.reads) < 60


def test_where_there_is_nothing_to_compare_with_nobody_is_blamed():
    with pytest.raises(ValueError, match="record 0") as caught:
        reader_of(Rows(1, bad={0})).batch([0])
    assert "cannot be said whether the records or the code" in caught.value.__notes__[0]
    assert "of 0 others" not in caught.value.__notes__[0]


class Unspeakable(ValueError):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_told_is_still_held_against_its_record():
    class Mute(Rows):
        def __getitem__(self, index):
            if index == 5:
                raise Unspeakable
            return super().__getitem__(index)

    reader = reader_of(Mute())
    assert taken(reader.batch([4, 5])) == [4, 6]
    assert [(record.exception, record.message) for record in reader.take_found()] == [
        ("Unspeakable", "its message cannot be read: RuntimeError in __str__")
    ]


def test_where_every_record_is_listed_it_says_so():
    reader = reader_of(Rows(3), [listed(index, {"x": index, "noise": 0.0}) for index in range(3)])
    with pytest.raises(NoUsableRecord, match="every one of the 3 records"):
        reader.batch([0])


def test_a_key_that_is_no_place_is_raised_and_not_replaced():
    rows = Rows(bad={"b"})
    reader = reader_of(rows)
    assert taken(reader.batch(["a"])) == ["a"]
    with pytest.raises(ValueError, match="record b"):
        reader.batch(["a", "b"])


def test_everything_else_is_the_datasets_own():
    rows = Rows()
    guarded = GuardedRecords(reader_of(rows))
    assert len(guarded) == 40
    assert guarded.column_names == ("x",)
    assert guarded[7]["x"] == 7
    assert not hasattr(guarded, "set_epoch")
    with pytest.raises(AttributeError):
        _ = guarded.__dataframe__
