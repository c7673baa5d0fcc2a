"""Which exceptions mean that memory ran out, and in which phase: real ones where they can be had without a GPU."""

from __future__ import annotations

import pytest

from self_healing.adapters.memory.memory_errors import is_out_of_memory, phase_of

pytestmark = pytest.mark.torch


def raised(do):
    with pytest.raises(Exception) as caught:
        do()
    return caught.value


def test_real_allocation_failures_are_recognised():
    import numpy as np
    import torch

    assert is_out_of_memory(raised(lambda: torch.empty(1 << 60, dtype=torch.uint8)))
    assert is_out_of_memory(raised(lambda: np.ones(1 << 60, dtype=np.uint8)))
    assert is_out_of_memory(raised(lambda: bytearray(1 << 62)))
    assert is_out_of_memory(torch.OutOfMemoryError("Allocation on device 0 failed"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB", True),
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("MPS backend out of memory (MPS allocated: 17.10 GB)", True),
        ("CUDA error: device-side assert triggered", False),
        ("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)", False),
        ("DataLoader worker (pid 4321) is killed by signal: Killed.", False),
        ("unable to allocate shared memory(shm) for file </torch_17>", False),
    ],
)
def test_messages_are_told_apart(text, expected):
    assert is_out_of_memory(RuntimeError(text)) is expected


def test_the_phase_is_where_the_exception_came_through():
    import torch

    def _prepare_inputs():
        raise torch.OutOfMemoryError

    class Explodes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            raise torch.OutOfMemoryError

    assert phase_of(raised(_prepare_inputs)) == "preparation"
    assert phase_of(raised(lambda: torch.empty(1 << 60, dtype=torch.uint8))) == "forward"
    assert phase_of(raised(Explodes.apply(torch.ones(1, requires_grad=True)).backward)) == "backward"
