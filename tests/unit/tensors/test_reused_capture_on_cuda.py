"""Snapshot after snapshot on a GPU: what is known of the last one is used again, and whatever changed is noticed."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch

from self_healing.tensors import host_layout, side_stream
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture

from .captured import busy, everything, pinned_slot, training

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WAYS = ["staged", "direct"]


@pytest.fixture(autouse=True)
def idle_device():
    """Each test begins and ends with a device that has nothing to do."""
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("piece", [1 << 30, 3 << 20], ids=["one-piece", "several-pieces"])
@pytest.mark.parametrize("way", WAYS)
def test_snapshots_after_the_first_collect_nothing_and_hold_the_new_values(way, piece, fused, monkeypatch):
    monkeypatch.setattr(host_layout, "PIECE_BYTES", piece)
    model, optimizer, train = training(fused)
    train()
    slots = [pinned_slot(), pinned_slot()]
    for count in range(3):
        taken = []
        for slot in slots:
            copies = HostCopies(slot, way=way)
            held = capture([model, optimizer], copies=copies)
            assert copies.collected == (0 if count else 2)
            expected = everything(model, optimizer)
            norm = model[0].weight.detach().norm().item()
            busy(side_stream.side_stream(torch.device("cuda", 0)))
            copies.start()
            assert copies.is_direct == (way == "direct")
            train()
            taken.append((held, copies, expected, norm))
        for held, copies, expected, norm in (*reversed(taken), *taken):  # the older one also after the newer one
            assert copies.verify()
            assert copies.norms()["0.weight"] == pytest.approx(norm, rel=1e-4)
            held.restore()
            copies.after_restore()
            assert everything(model, optimizer) == expected
        train()


def replace_values(model, optimizer):
    model[0].weight.data = torch.randn_like(model[0].weight)


def replace_state(model, optimizer):
    state = optimizer.state[model[0].weight]
    state["exp_avg"] = torch.randn_like(state["exp_avg"])


def replace_buffer(model, optimizer):
    model[1].running_mean = torch.randn_like(model[1].running_mean)


@pytest.mark.parametrize("change", [replace_values, replace_state, replace_buffer], ids=lambda change: change.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_replaced_on_the_device_is_noticed(way, change):
    model, optimizer, train = training()
    train()
    slot = pinned_slot()
    for is_changed in (False, True):
        if is_changed:
            change(model, optimizer)
        before = everything(model, optimizer)
        copies = HostCopies(slot, way=way)
        held = capture([model, optimizer], copies=copies)
        copies.start()
        assert copies.collected
        train()
        held.restore()
        copies.after_restore()
        assert everything(model, optimizer) == before


def test_room_that_is_gone_at_a_later_snapshot_is_done_without_and_asked_for_again():
    model, optimizer, train = training(width=2048)
    train()
    slot = HostSlot()
    total = torch.cuda.get_device_properties(0).total_memory
    for is_short in (False, True, False):
        before = everything(model, optimizer)
        copies = HostCopies(slot, way="staged")
        held = capture([model, optimizer], copies=copies)
        gc.collect()
        torch.cuda.empty_cache()
        fillers = []
        if is_short:
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                while True:  # nor is there room between what other tests have left
                    fillers.append(torch.empty(copies.nbytes // 4, dtype=torch.uint8, device="cuda"))
        try:
            copies.start()
            copies.norms()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert copies.is_direct == is_short
        train()
        held.restore()
        copies.after_restore()
        assert everything(model, optimizer) == before
