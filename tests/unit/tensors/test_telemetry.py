"""The ring: in order, complete, never waiting, never growing."""

from __future__ import annotations

import pytest
import torch

from self_healing.tensors.telemetry import TelemetryRing

pytestmark = pytest.mark.torch


def test_vectors_arrive_in_order():
    ring = TelemetryRing(4)
    for step in range(3):
        ring.push(step, torch.tensor([float(step), 0.5]))
    assert ring.ready() == [(0, [0.0, 0.5]), (1, [1.0, 0.5]), (2, [2.0, 0.5])]
    assert ring.ready() == []
    ring.push(3, torch.tensor([3.0]))
    assert ring.drain() == [(3, [3.0])]
    assert len(ring) == 0


def test_the_newest_can_be_left_on_their_way():
    ring = TelemetryRing(4)
    for step in range(3):
        ring.push(step, torch.tensor([float(step)]))
    assert ring.drain(but_newest=1) == [(0, [0.0]), (1, [1.0])]
    assert ring.drain(but_newest=1) == []
    assert ring.drain() == [(2, [2.0])]


def test_what_nobody_reads_is_given_up_and_counted():
    ring = TelemetryRing(2)
    for step in range(5):
        ring.push(step, torch.tensor([float(step)]))
    assert [step for step, _ in ring.drain()] == [3, 4]
    assert ring.lost == 3
    with pytest.raises(ValueError, match="at least one"):
        TelemetryRing(0)


def test_pushing_and_polling_do_not_wait(no_host_waits):
    ring = TelemetryRing(2)
    with no_host_waits():
        ring.push(1, torch.ones(6))
        assert ring.ready() == [(1, [1.0] * 6)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_is_ready_before_it_is_and_nothing_waits():
    ring = TelemetryRing(4)
    busy = torch.randn(8192, 8192, device="cuda")
    ring.push(
        0, torch.full((6,), 0.0, device="cuda") + (busy @ busy)[0, :6]
    )  # a kernel's first use waits for the device
    ring.drain()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            busy = busy @ busy
        ring.push(1, torch.full((6,), 2.0, device="cuda"))
        early = ring.ready()
        for step in range(2, 12):
            ring.push(step, torch.full((6,), float(step), device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert early == []
    assert ring.drain() == [(step, [float(step)] * 6) for step in range(8, 12)]
