"""Copies on a device that are measured on the way: each value is read once for both, in one kernel.

As operations of torch the norms of a snapshot take the device two thirds as long as the copy itself; here they come with
it. What the kernel does not know (odd sizes, scattered elements, double precision) torch copies and measures, as it does
everything where our kernels cannot be used (see `fused`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .fused import Kernel, compiled, fused_or_none

if TYPE_CHECKING:
    from .host_layout import Piece, Place, Run

ITEM_BYTES = 64 << 10
"""What one block of threads copies; with more, or fewer threads, the device's memory is used less well (by 3 to 5 %)."""
THREADS = 512
KINDS = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""What the kernel can measure, and as what it knows it."""
WORD_BYTES = 4

_STAGE = """
__device__ float squared(unsigned int word, int kind) {
    if (kind == 1) { const float x = __uint_as_float(word); return x * x; }
    float low, high;
    if (kind == 2) {
        low = __uint_as_float(word << 16); high = __uint_as_float(word & 0xffff0000u);
    } else {
        asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"((unsigned short)(word & 0xffffu)));
        asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"((unsigned short)(word >> 16)));
    }
    return low * low + high * high;
}

extern "C" __global__ void self_healing_stage(const long long* table, unsigned char* memory, double* squares) {
    __shared__ float sums[32];
    const long long* row = table + 5 * (long long)blockIdx.x;
    const long long bytes = row[2], slot = row[3];
    const int kind = (int)row[4];
    float sum = 0.0f;
    if (((row[0] | row[1] | bytes) & 15) == 0) {
        const uint4* from = (const uint4*)row[0];
        uint4* to = (uint4*)(memory + row[1]);
        for (long long i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
            const uint4 four = from[i];
            to[i] = four;
            if (kind) sum += squared(four.x, kind) + squared(four.y, kind) + squared(four.z, kind) + squared(four.w, kind);
        }
    } else {
        const unsigned int* from = (const unsigned int*)row[0];
        unsigned int* to = (unsigned int*)(memory + row[1]);
        for (long long i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
            const unsigned int word = from[i];
            to[i] = word;
            if (kind) sum += squared(word, kind);
        }
    }
    if (!kind) return;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    double total = 0.0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) total += sums[warp];
    atomicAdd(squares + slot, total);
}
"""


class Staging:
    """How the tensors of one piece are copied and measured; good as long as they are where they are."""

    def __init__(self, piece: Piece, launch: Kernel) -> None:
        self.places: list[Place] = []
        """What is measured on the way, in the order of the results."""
        self.others: list[Run] = []
        """What is left to torch."""
        self._start = piece.start
        self._launch = launch
        rows = [torch.empty(0, 5, dtype=torch.int64)]
        for run in piece.runs:
            if _is_known(run):
                rows += self._rows(run)
            else:
                self.others.append(run)
        self._items = sum(map(len, rows))
        self._table = torch.cat(rows).pin_memory().to(piece.device, non_blocking=True)

    def _rows(self, run: Run) -> list[Tensor]:
        """Return where from, where to, how many bytes, whose norm and of which kind, for each block of threads."""
        rows = []
        for place, flat in zip(run.places, run.flat(), strict=True):
            begin = torch.arange(0, place.nbytes, ITEM_BYTES)
            row = torch.empty(len(begin), 5, dtype=torch.int64)
            row[:, 0] = flat.data_ptr() + begin
            row[:, 1] = place.offset - self._start + begin
            row[:, 2] = (place.nbytes - begin).clamp(max=ITEM_BYTES)
            row[:, 3] = len(self.places)
            row[:, 4] = KINDS[place.dtype] if place.is_measured else 0
            if place.is_measured:
                self.places.append(place)
            rows.append(row)
        return rows

    def copy_to(self, memory: Tensor) -> Tensor:
        """Copy everything to memory on the device; return the sums of squares, both once the stream has come there."""
        squares = torch.zeros(len(self.places), dtype=torch.float64, device=memory.device)
        if self._items:
            self._launch(self._table, memory, squares, grid=(self._items, 1, 1), block=(THREADS, 1, 1))
        for run in self.others:
            run.copy_to(memory, self._start)
        return squares


def _is_known(run: Run) -> bool:
    can_measure = run.dtype in KINDS or not run.measured()
    return run.width >= WORD_BYTES and can_measure and not any(place.is_scattered for place in run.places)


def staging_of(piece: Piece) -> Staging | None:
    """Return how a piece is copied on its device, None where torch has to do it."""
    if piece.device.type != "cuda" or piece.is_direct:
        return None
    return fused_or_none(
        lambda: Staging(piece, compiled(_STAGE, "self_healing_stage", {})),
        piece.device,
        otherwise="the norms of snapshots are computed after they were copied",
    )
