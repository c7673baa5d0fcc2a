"""Checksums on a GPU: those of the host, and begun without waiting for what the device has before it."""

from __future__ import annotations

import time

import pytest
import torch

from self_healing.tensors.checksums import Checksums, checksums_now

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LONG_CYCLES = 2_000_000_000
"""About a second of a GPU's time."""


def tensors():
    made = [
        torch.randn(size).to(dtype) for size in (1, 5, 4096, 1_000_003) for dtype in (torch.float32, torch.bfloat16)
    ]
    return [*made, made[-1][1:], made[-2][: 1000 * 1000].view(1000, 1000).t()]


def test_they_are_those_of_the_host():
    made = tensors()
    there = [each.cuda() for each in made]
    assert checksums_now(there) == Checksums(there).read() == checksums_now(made)


def test_whoever_begins_them_does_not_wait_for_the_device():
    there = [each.cuda() for each in tensors()]
    Checksums(there).read()  # the stream and the thread are made once
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_CYCLES)
    began_s = time.perf_counter()
    begun = Checksums(there)
    took_s = time.perf_counter() - began_s
    assert not begun.are_there()
    assert took_s < 0.1
    assert begun.read() == checksums_now(there)
