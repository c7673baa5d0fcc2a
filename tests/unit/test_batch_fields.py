"""A batch of any form, taken apart into named values and put together again."""

from __future__ import annotations

import collections
import dataclasses
import typing

import pytest

torch = pytest.importorskip("torch")
from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from self_healing.adapters.plain_loop.batch_fields import BatchFields  # noqa: E402

pytestmark = pytest.mark.torch


class Pair(typing.NamedTuple):
    first: object
    second: object


@dataclasses.dataclass(frozen=True)
class Record:
    first: object
    second: object = None


class OwnDict(collections.UserDict):
    """As a tokenizer's encoding is one."""


leaves = st.one_of(
    st.builds(torch.arange, st.integers(0, 4)),
    st.text(max_size=3),
    st.integers(),
    st.none(),
    st.booleans(),
    st.lists(st.text(max_size=2), max_size=3),
    st.binary(max_size=2),
)
names = st.text("abc._0", max_size=3)


def nests(inside):
    return st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(names, inside, max_size=3),
        st.dictionaries(names, inside, max_size=3).map(OwnDict),
        st.dictionaries(names, inside, max_size=3).map(collections.OrderedDict),
        st.builds(Pair, inside, inside),
        st.builds(Record, inside, inside),
    )


batches = st.recursive(leaves, nests, max_leaves=8)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one is other
    if isinstance(one, dict | collections.UserDict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return one == other


@given(batches)
@example({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}})
def test_what_is_put_together_is_what_was_given(batch):
    taken = BatchFields(batch)
    assert taken.batch(taken.fields) is batch, "the very same the first time"
    assert same(taken.batch(taken.fields), batch)
    assert same(taken.batch(dict(taken.fields)), batch)


@given(batches)
@example({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}})
@example({0: torch.ones(1), "0": torch.zeros(1)})
@example({"": torch.ones(1), "batch": torch.zeros(1)})
def test_no_two_values_have_the_same_name(batch):
    """A dictionary with the keys `a.b` and `a` with `b` in it must not lose one of them."""
    taken, marks = BatchFields(batch), {}
    given_back = taken.batch({name: marks.setdefault(name, object()) for name in taken.fields})
    count = len(list(_leaves_of(batch)))
    assert len(taken.fields) == count
    assert batch is None or given_back is not None


def _leaves_of(batch):
    if isinstance(batch, dict | collections.UserDict):
        for value in batch.values():
            yield from _leaves_of(value)
    elif isinstance(batch, list | tuple) and any(
        not isinstance(i, str | bytes | int | float | bool | None) for i in batch
    ):
        for value in batch:
            yield from _leaves_of(value)
    elif dataclasses.is_dataclass(batch):
        for each in dataclasses.fields(batch):
            yield from _leaves_of(getattr(batch, each.name))
    else:
        yield batch


def test_a_batch_that_is_taken_out_of_is_whole_the_next_time():
    batch = {"x": torch.ones(2), "deep": {"y": torch.zeros(2)}}
    taken = BatchFields(batch)
    first = taken.batch(taken.fields)
    first.pop("x")
    first["deep"].clear()
    again = taken.batch(taken.fields)
    assert set(again) == {"x", "deep"}
    assert set(again["deep"]) == {"y"}


def test_a_batch_that_was_written_into_is_known():
    batch = (torch.ones(2), [torch.zeros(3), "text"])
    taken = BatchFields(batch)
    assert not taken.is_changed()
    batch[1][0].add_(1)
    assert taken.is_changed()


def test_a_tensor_alone_is_a_batch():
    taken = BatchFields(torch.ones(3))
    assert list(taken.fields) == ["batch"]
    assert torch.equal(taken.batch({"batch": torch.zeros(1)}), torch.zeros(1))
