"""The chunks in which a snapshot travels; what a device makes of them is in `test_host_slot_on_cuda.py`."""

from __future__ import annotations

import pytest
import torch

from self_healing.tensors import carrying
from self_healing.tensors.carrying import Load
from self_healing.tensors.host_layout import Place
from self_healing.tensors.reused_memory import HostSlot

pytestmark = pytest.mark.torch


def pieces(tensors):
    return HostSlot().lay_out([Place.of(each, until_update=True) for each in tensors], pinned=False)


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "direct"])
@pytest.mark.parametrize("chunk", [8, 64, 100, 1 << 20])
def test_groups_are_all_of_a_piece_and_no_chunk_is_larger_than_it_may_be(chunk, is_staged, monkeypatch):
    monkeypatch.setattr(carrying, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(carrying, "SMALL_BYTES", 60)
    made = [torch.randn(33), torch.randn(7, 5, dtype=torch.float64), torch.randint(9, (101,)).to(torch.uint8)]
    laid_out = pieces(made)
    for piece in laid_out:
        memory = None
        if is_staged:
            memory = torch.zeros(piece.end - piece.start, dtype=torch.uint8)
            piece.copy_to(memory)
        for group in Load(piece, memory, None).groups():
            assert all(target.nbytes == source.nbytes <= chunk for target, source in (*group.small, *group.large))
            group.copy(is_waited_for=True)
    places = [place for piece in laid_out for run in piece.runs for place in run.places]
    assert {place.dtype: place.values().flatten().tolist() for place in places} == {
        each.dtype: each.flatten().tolist() for each in made
    }


def test_small_chunks_go_together_and_not_too_many_of_them(monkeypatch):
    monkeypatch.setattr(carrying, "CHUNK_BYTES", 80)
    monkeypatch.setattr(carrying, "SMALL_BYTES", 40)
    (piece,) = pieces([torch.randn(4) for _ in range(11)] + [torch.randn(120)])
    groups = list(Load(piece, None, None).groups())
    assert [(len(group.small), len(group.large)) for group in groups] == [(5, 0), (5, 0), (1, 4), (0, 2)]
