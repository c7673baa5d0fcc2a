"""Whether a device has room for a copy of the state: a run must never run out of memory because of a snapshot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from self_healing.tensors import side_stream
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture

from .captured import noise

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def unknown_device(monkeypatch):
    """A device of which nothing is known yet: other tests have let memory run out."""
    monkeypatch.setattr(side_stream, "_busiest", {})
    torch.cuda.reset_peak_memory_stats()


def way_taken(made, slot=None):
    copies = HostCopies(slot or HostSlot())
    capture([made], copies=copies)
    copies.start()
    copies.norms()
    return "direct" if copies.is_direct else "staged"


@pytest.fixture
def state():
    return nn.ParameterList([noise((8 << 20,), torch.float32, device="cuda")])


@pytest.mark.parametrize(("margin", "way"), [(0, "staged"), (1 << 60, "direct")])
def test_without_room_the_tensors_themselves_are_read(margin, way, state, unknown_device, monkeypatch):
    monkeypatch.setattr(side_stream, "MARGIN_BYTES", margin)
    assert way_taken(state) == way


def test_room_is_what_is_left_at_the_busiest_moment_under_the_limit_of_the_process(state, unknown_device, monkeypatch):
    monkeypatch.setattr(side_stream, "MARGIN_BYTES", 0)
    slot = HostSlot()
    total = torch.cuda.get_device_properties(0).total_memory
    busy_with = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")  # and the state takes 32 MiB
    peak = torch.cuda.max_memory_allocated()
    del busy_with  # between two steps it is free
    try:
        torch.cuda.set_per_process_memory_fraction((peak + (8 << 20)) / total)
        assert way_taken(state, slot) == "direct", "the next step will need what is free now"
        torch.cuda.set_per_process_memory_fraction((peak + (80 << 20)) / total)
        assert way_taken(state, slot) == "staged"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_was_staged_itself_is_no_reason_not_to_stage_again(state, unknown_device, monkeypatch):
    monkeypatch.setattr(side_stream, "MARGIN_BYTES", 0)
    torch.cuda.synchronize()
    slot = HostSlot()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.max_memory_allocated() + (48 << 20)) / total)
        assert [way_taken(state, slot) for _ in range(4)] == ["staged"] * 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_where_memory_has_run_out_nothing_is_staged_any_more(state, unknown_device):
    slot = HostSlot()
    assert way_taken(state, slot) == "staged"
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert way_taken(state, slot) == "direct"
