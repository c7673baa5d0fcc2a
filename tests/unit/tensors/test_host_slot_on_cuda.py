"""Snapshots on a GPU: right whatever the device does next, and nobody waits for them."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch import nn

from self_healing.tensors import arrivals, carrying, host_layout, side_stream
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture, keep

from . import captured
from .captured import bits, busy, everything, pinned_slot, training

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WAYS = ["staged", "direct"]


@pytest.fixture(scope="module", autouse=True)
def loaded_kernels():
    """A kernel is loaded when it is launched for the first time, which may wait for the device."""
    for way in WAYS:
        copies = HostCopies(HostSlot(), way=way)
        for each in tensors():
            keep(each, copies, measure=True, until_update=True)
        copies.start()
        copies.wait()
    torch.cuda._sleep(1)


@pytest.fixture(autouse=True)
def idle_device():
    """Each test begins and ends with a device that has nothing to do."""
    torch.cuda.synchronize()
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def noise(shape, dtype, seed=0):
    return captured.noise(shape, dtype, seed, device="cuda")


def tensors():
    return [
        noise((1 << 20,), torch.float32, 1),
        noise((3 << 19, 1), torch.bfloat16, 2),
        noise((1 << 20, 3), torch.float32, 3).t(),
        noise((1031, 1033), torch.float16, 4),
        noise((2 << 20,), torch.uint8, 5),
        noise((1 << 18, 8), torch.float32, 6)[:, ::2],
        noise((1 << 19,), torch.float32, 7)[1:],
        noise((7, 5), torch.float32, 8),
        noise((33,), torch.bfloat16, 9),
        noise((9,), torch.bool, 10),
        noise((5,), torch.int64, 11),
        torch.tensor(3.5, device="cuda"),
        torch.zeros(0, 4, device="cuda"),
        torch.tensor(7.0),  # counts of steps are on the host with many optimizers
    ]


@pytest.mark.parametrize("piece", [1 << 30, 3 << 20], ids=["one-piece", "several-pieces"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_right_afterwards_is_not_seen(way, piece, monkeypatch):
    monkeypatch.setattr(host_layout, "PIECE_BYTES", piece)
    made, slot = tensors(), HostSlot()
    expected = [bits(each) for each in made]
    for is_first in (True, False):
        copies = HostCopies(slot, way=way)
        kept = [keep(each, copies, until_update=True) for each in made]
        busy()
        busy(side_stream.side_stream(made[0].device))
        copies.start()
        assert is_first or not copies.is_complete()  # memory is pinned the first time, which waits for the device
        assert copies.is_direct == (way == "direct")
        # No optimizer was captured that could be told to wait: everything waits already.
        for each in made:
            each.zero_()
        copies.wait()
        assert copies.is_complete()
        assert [bits(each.copy.values) for each in kept] == expected
        assert copies.verify()
        assert all(bits(each).count(0) == len(bits(each)) for each in made)
        copies.before_restore()
        for each in kept:
            each.back()
        assert [bits(each) for each in made] == expected


@pytest.mark.parametrize("way", WAYS)
def test_what_the_forward_pass_may_write_to_is_never_read_late(way):
    early, late = noise((1 << 20,), torch.float32), noise((1 << 20,), torch.float32, 1)
    small = noise((1 << 10,), torch.float32, 2)
    expected = [bits(each) for each in (early, late, small)]
    copies = HostCopies(pinned_slot(), way=way)
    copies.writers.append(torch.optim.SGD([nn.Parameter(late)]))  # it takes no step here
    kept = [keep(early, copies), keep(late, copies, until_update=True), keep(small, copies, until_update=True)]
    busy(side_stream.side_stream(late.device))
    copies.start()
    early.zero_()
    small.zero_()
    copies.wait_before_write()
    assert not copies.is_complete()  # the device waits, not the host
    late.zero_()
    assert [bits(each.copy.values) for each in kept] == expected


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_trains_on_at_once_can_go_back(way, fused):
    model, optimizer, train = training(fused)
    train()
    before = everything(model, optimizer)
    copies = HostCopies(pinned_slot(), way=way)
    held = capture([model, optimizer], copies=copies)
    busy(side_stream.side_stream(torch.device("cuda", 0)))  # the copy comes late; the optimizer has to wait for it
    copies.start()
    train()
    after = everything(model, optimizer)
    assert after != before
    for _ in range(2):
        assert copies.verify()
        held.restore()
        copies.after_restore()
        assert everything(model, optimizer) == before
        train()
        assert everything(model, optimizer) == after


def test_going_back_leaves_a_later_snapshot_alone_that_is_still_being_read():
    model, optimizer, train = training()
    train()
    first = HostCopies(pinned_slot())
    held = capture([model, optimizer], copies=first)
    first.start()
    train()
    later = everything(model, optimizer)
    second = HostCopies(pinned_slot(), way="direct")
    held_later = capture([model, optimizer], copies=second)
    busy(side_stream.side_stream(torch.device("cuda", 0)))
    second.start()
    held.restore()
    held_later.restore()
    assert everything(model, optimizer) == later


@pytest.mark.parametrize("way", WAYS)
def test_nobody_waits_for_the_device(way):
    model, optimizer, train = training()
    train()
    slot = pinned_slot()
    for is_known in (False, True, True):
        copies = HostCopies(slot, way=way)
        busy()
        torch.cuda.set_sync_debug_mode("error")
        capture([model, optimizer], copies=copies)
        copies.start()
        copies.wait_before_write()
        torch.cuda.set_sync_debug_mode("default")
        assert not copies.is_complete()
        assert copies.collected == (0 if is_known else 2)
        copies.norms()


def test_memory_is_pinned_used_again_and_given_back():
    model, optimizer, train = training()
    train()
    slot = HostSlot()
    where = []
    for _ in range(2):
        copies = HostCopies(slot)
        held = capture([model, optimizer], copies=copies)
        copies.start()
        copies.wait()
        where.append([place.values().data_ptr() for place in copies._places])
        assert all(block.is_pinned and block.is_registered for block in slot._blocks if block.is_for_devices)
    assert where[0] == where[1]
    assert copies.nbytes <= slot.nbytes < copies.nbytes + (72 << 20)
    view = slot._blocks[0].bytes[:100]
    assert view.is_pinned()
    arrivals.wait_for_workers()
    del held, copies, slot
    gc.collect()
    assert not view.is_pinned()
    assert view.sum().isfinite()


def test_where_memory_cannot_be_registered_torch_pins_it(monkeypatch):
    monkeypatch.setattr("self_healing.tensors.host_memory.PORTABLE", 0xFFFF)  # flags the driver refuses
    made = noise((1 << 20,), torch.float32)
    copies = HostCopies(slot := HostSlot())
    kept = keep(made, copies)
    copies.start()
    torch.ones(3, device="cuda").add_(1)  # does not hear of what was refused
    assert slot._blocks[0].is_pinned
    assert not slot._blocks[0].is_registered
    assert bits(kept.copy.values) == bits(made)


@pytest.mark.parametrize("way", WAYS)
def test_the_device_has_its_memory_back_afterwards(way):
    made = noise((8 << 20,), torch.float32)
    slot = HostSlot()
    for _ in range(2):
        copies = HostCopies(slot, way=way)
        before = torch.cuda.memory_allocated()
        keep(made, copies, until_update=True, measure=True)
        copies.start()
        copies.norms()
        assert torch.cuda.memory_allocated() - before < 1 << 20


def test_a_copy_that_finds_no_memory_on_the_device_goes_without():
    made = [noise((32 << 20,), torch.float32), noise((1 << 20, 16), torch.float32, 1)[:, ::2]]
    expected = [bits(each) for each in made]
    copies = HostCopies(HostSlot(), way="staged")
    kept = [keep(made[0], copies, until_update=True), keep(made[1], copies)]
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (80 << 20)) / total)
    try:
        copies.start()  # 128 and 32 MiB, the second with a temporary copy of as much
        for each in made:
            each.zero_()
        copies.wait()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert copies.is_direct
    assert [bits(each.copy.values) for each in kept] == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_and_changed_bits(dtype, way):
    model, optimizer, train = training(dtype=dtype)
    train()
    copies = HostCopies(HostSlot(), way=way)
    capture([model, optimizer], copies=copies)
    copies.start()
    expected = {
        name: torch.linalg.vector_norm(p.detach(), dtype=torch.float32).item() for name, p in model.named_parameters()
    }
    expected |= {
        f"optimizer.{key}/{name}": torch.linalg.vector_norm(optimizer.state[p][key], dtype=torch.float32).item()
        for name, p in model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq")
    }
    expected |= {
        name: torch.linalg.vector_norm(buffer, dtype=torch.float32).item()
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point()
    }
    norms = copies.norms()
    assert set(norms) == set(expected)
    assert norms == pytest.approx(expected, rel=1e-4)
    assert copies.verify()
    memory = next(block.bytes for block in copies._used if block.is_for_devices)
    memory[12345] ^= 1
    assert not copies.verify()
    memory[12345] ^= 1
    assert copies.verify()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        gc.collect()  # what the worker inherited is let go of there, which must not reach the device
        return index


def test_workers_that_are_forked_later_do_no_harm():
    model, optimizer, train = training()
    train()
    before = everything(model, optimizer)
    copies = HostCopies(HostSlot())
    held = capture([model, optimizer], copies=copies)
    copies.start()
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork")
    assert [int(each) for each in loader] == [0, 1, 2, 3]
    train()
    assert copies.verify()
    held.restore()
    assert everything(model, optimizer) == before


LARGE_BYTES = 4 << 30
"""What takes a device a tenth of a second to carry to the host."""


@pytest.fixture(scope="module")
def large():
    made = torch.arange(LARGE_BYTES // 8, device="cuda")
    slot = HostSlot()
    slot.reserve(LARGE_BYTES + (1 << 20), pinned=True)
    return made, slot


@pytest.mark.parametrize("way", WAYS)
def test_what_training_reads_does_not_queue_behind_a_snapshot(way, large):
    made, slot = large
    copies = HostCopies(slot, way=way)
    copies.writers.append(torch.optim.SGD([nn.Parameter(torch.zeros(1, device="cuda"))]))  # it takes no step here
    keep(made, copies, until_update=True)
    number = torch.tensor(7.0, device="cuda")
    torch.cuda.synchronize()
    copies.start()
    assert [number.item() for _ in range(5)] == [7.0] * 5
    assert not copies.is_complete()
    copies.wait()
    assert copies.verify()


A_WHILE_S = 0.3
"""In which a device could carry the snapshot to the host a hundred times."""


WAITING = [HostCopies.wait, HostCopies.verify, HostCopies.norms, lambda _: arrivals.wait_for_devices()]


@pytest.mark.parametrize("wait", WAITING, ids=["values", "verify", "norms", "memory"])
def test_training_has_a_head_start_on_what_is_staged_unless_somebody_waits_for_it(wait, monkeypatch):
    monkeypatch.setattr(carrying, "HEAD_START_S", 3600.0)
    made = noise((4 << 20,), torch.float32)
    copies = HostCopies(pinned_slot(), way="staged")
    kept = keep(made, copies, until_update=True)
    copies.start()
    torch.cuda.synchronize()
    time.sleep(A_WHILE_S)
    assert not copies.is_complete()
    wait(copies)
    assert copies.is_complete()
    assert bits(kept.copy.values) == bits(made)
    assert copies.verify()


def test_what_an_optimizer_would_have_to_wait_for_sets_out_at_once(monkeypatch):
    monkeypatch.setattr(carrying, "HEAD_START_S", 3600.0)
    made = noise((4 << 20,), torch.float32)
    copies = HostCopies(pinned_slot(), way="direct")
    copies.writers.append(torch.optim.SGD([nn.Parameter(torch.zeros(1, device="cuda"))]))  # it takes no step here
    keep(made, copies, until_update=True)
    copies.start()
    while not copies.is_complete():  # nobody waits for it
        time.sleep(0.01)
    assert copies.verify()


def test_a_step_that_cannot_wait_has_the_rest_sent_at_once(large):
    made, slot = large
    expected = made.clone()
    copies = HostCopies(slot, way="direct")
    parameter = nn.Parameter(made.view(torch.float64))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.step()  # its kernels are loaded, which waits for the device
    made.copy_(expected)
    copies.writers.append(optimizer)
    kept = keep(made, copies, until_update=True)
    torch.cuda.synchronize()
    copies.start()
    optimizer.step()
    assert not copies.is_complete()  # the device waits, not the host
    torch.cuda.synchronize()
    assert not torch.equal(made, expected)
    made.copy_(kept.copy.values)
    assert torch.equal(made, expected)


@pytest.mark.parametrize("way", WAYS)
def test_whoever_looks_for_synchronisations_is_not_told_of_a_snapshot(way):
    made = noise((64 << 20,), torch.float32)
    slot = pinned_slot()
    slot.reserve(300 << 20, pinned=True)
    copies = HostCopies(slot, way=way)
    kept = keep(made, copies, until_update=True, measure=True)
    torch.cuda.set_sync_debug_mode("error")
    copies.start()
    copies.wait()
    copies.norms()
    torch.cuda.set_sync_debug_mode("default")
    assert copies.verify()
    assert bits(kept.copy.values) == bits(made)
