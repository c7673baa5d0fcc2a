"""The chunks in which a snapshot travels; what a device makes of them is in `test_host_slot_on_cuda.py`."""

from __future__ import annotations

import pytest
import torch

from self_healing.tensors import chunks
from self_healing.tensors.carrying import Load
from self_healing.tensors.host_layout import Place
from self_healing.tensors.reused_memory import HostSlot

pytestmark = pytest.mark.torch


def pieces(tensors):
    return HostSlot().lay_out([Place.of(each, until_update=True) for each in tensors], pinned=False)


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "direct"])
@pytest.mark.parametrize("chunk", [8, 64, 100, 1 << 20])
def test_groups_are_all_of_a_piece_and_no_chunk_is_larger_than_it_may_be(chunk, is_staged, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(chunks, "SMALL_BYTES", 60)
    made = [torch.randn(33), torch.randn(7, 5, dtype=torch.float64), torch.randint(9, (101,)).to(torch.uint8)]
    laid_out = pieces(made)
    for piece in laid_out:
        memory = None
        if is_staged:
            memory = torch.zeros(piece.end - piece.start, dtype=torch.uint8)
            piece.copy_to(memory)
        for group in Load(piece, memory, None).groups():
            for each in (group.small, group.large):
                pairs = zip(each.targets, each.sources, strict=True)
                assert all(target.nbytes == source.nbytes <= chunk for target, source in pairs)
            group.copy(is_waited_for=True)
    places = [place for piece in laid_out for run in piece.runs for place in run.places]
    assert {place.dtype: place.values().flatten().tolist() for place in places} == {
        each.dtype: each.flatten().tolist() for each in made
    }


def test_small_chunks_go_together_and_not_too_many_of_them(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 80)
    monkeypatch.setattr(chunks, "SMALL_BYTES", 40)
    (piece,) = pieces([torch.randn(4) for _ in range(7)] + [torch.randn(140)])
    groups = list(Load(piece, None, None).groups())
    assert [(len(group.small.targets), len(group.large.targets)) for group in groups] == [
        (3, 0),
        (3, 0),
        (1, 4),
        (0, 3),
    ]


def test_the_first_group_has_fewer_chunks_because_they_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 80)
    monkeypatch.setattr(chunks, "SMALL_BYTES", 40)
    (piece,) = pieces([torch.randn(140)])
    groups = list(Load(piece, None, None).groups())
    assert [len(group.large.targets) for group in groups] == [chunks.CHUNKS_AT_FIRST, chunks.CHUNKS_AT_ONCE, 2]
