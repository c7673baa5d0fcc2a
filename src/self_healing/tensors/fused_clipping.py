"""ZClip and AdaGC in one or two CUDA kernels each, for the reasons and with the caution that `fused` explains."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .fused import compiled
from .norms import SMALLEST

_ZCLIP = """
extern "C" __global__ void self_healing_zclip(
    const float* norm_, const float* held, double* memory, float* out, double rate, double threshold_z, double factor, double eps,
    double max_norm, double warmup, int flags
) {
    const bool percentile = flags & 1, to_mean = flags & 2, keeps_spikes_out = flags & 4, limited = flags & 8;
    const float norm = *norm_;
    const double g = norm, mean = memory[0], var = memory[1], count = memory[2];
    const bool finite = norm - norm == 0.0f, warm = count >= warmup, known = finite && warm;
    const double std = sqrt(var), z = (g - mean) / (std + eps);
    double threshold = (mean + threshold_z * std / (z / threshold_z)) * factor;
    if (percentile) threshold = mean + threshold_z * std; else if (to_mean) threshold = mean;
    const bool spike = known && (percentile ? g > threshold : z > threshold_z);
    const double value = spike ? threshold : g;
    const float limit = (float)(limited && value > max_norm ? max_norm : value);
    out[0] = finite && norm > limit ? limit / (norm + SMALLEST) : 1.0f;
    memory[4] = z;
    memory[5] = known;
    if (!(*held < 0.5f)) return;  // it is learned when it is made up
    memory[3] += spike;
    if (!finite || (keeps_spikes_out && spike)) return;
    const double share = warm ? rate : 1.0 / (count + 1.0);
    const double now = mean + share * (value - mean), rest = value - now;
    memory[0] = now;
    memory[1] = var + share * (rest * (warm ? rest : value - mean) - var);
    memory[2] = fmin(count + 1.0, warmup);
}
"""

_ADAGC = """
extern "C" __global__ void self_healing_adagc(
    const float* total_, const float* held, const float* each, float* gammas, float* steps, float* shrink, float* whole, int n,
    double lambda_rel_, double lambda_abs_, double beta_, double warmup, double max_norm
) {
    __shared__ float squares[256];
    const float total = *total_, lambda_rel = lambda_rel_, lambda_abs = lambda_abs_, beta = beta_;
    const bool finite = total - total == 0.0f, warming = *steps < (float)warmup;
    const bool learns = finite && *held < 0.5f;  // what is held back is learned when it is made up
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float norm = each[i], gamma = gammas[i];
        float s = fminf(warming ? lambda_abs / total : lambda_rel * gamma / norm, 1.0f);
        if (!finite || s != s) s = 1.0f;
        const float clipped = s * norm;
        const float average = isinf(gamma) ? clipped : beta * gamma + (1.0f - beta) * clipped;
        if (learns && norm > 0.0f) gammas[i] = warming ? fminf(gamma, clipped) : average;
        shrink[i] = s;
        sum += clipped * clipped;
    }
    squares[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) squares[threadIdx.x] += squares[threadIdx.x + half];
        __syncthreads();
    }
    const float after = sqrtf(squares[0]);
    const float rest = finite && max_norm > 0.0 ? fminf((float)max_norm / (after + SMALLEST), 1.0f) : 1.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) shrink[i] *= rest;
    if (threadIdx.x == 0) {
        *whole = finite && total > 0.0f ? after * rest / total : 1.0f;
        *steps += learns;
    }
}
"""

_SCALE = """
struct Places { float* of[AT_ONCE]; };

extern "C" __global__ void self_healing_scale(
    const __grid_constant__ Places places, const long long* sizes, const long long* ends, const float* shrink, int n
) {
    for (long long chunk = blockIdx.x; chunk < ends[n - 1]; chunk += gridDim.x) {
        int tensor = 0;
        for (int last = n - 1; tensor < last;) {  // the first one that ends behind this chunk
            const int middle = (tensor + last) / 2;
            if (ends[middle] > chunk) last = middle; else tensor = middle + 1;
        }
        const float factor = shrink[tensor];
        if (factor == 1.0f) continue;
        const long long begin = (chunk - (tensor ? ends[tensor - 1] : 0)) * CHUNK;
        const int size = (int)min((long long)CHUNK, sizes[tensor] - begin);
        float* values = places.of[tensor] + begin;
        int done = 0;
        if ((unsigned long long)values % 16 == 0) {
            float4* fours = (float4*)values;
            done = size / 4 * 4;
            #pragma unroll 4
            for (int i = threadIdx.x; i < size / 4; i += blockDim.x) {
                float4 four = fours[i];
                four.x *= factor; four.y *= factor; four.z *= factor; four.w *= factor;
                fours[i] = four;
            }
        }
        for (int i = done + threadIdx.x; i < size; i += blockDim.x) values[i] *= factor;
    }
}
"""

_CONSTANTS = {"SMALLEST": SMALLEST}

PERCENTILE, TO_MEAN, KEEPS_SPIKES_OUT, LIMITED = 1, 2, 4, 8


class FusedZClip:
    """The kernel of ZClip and its memory: mean, variance, count and clips in double precision."""

    def __init__(self, saved: Sequence[Tensor]) -> None:
        self._launch = compiled(_ZCLIP, "self_healing_zclip", _CONSTANTS)
        self.memory = torch.cat((torch.stack(tuple(saved)), torch.zeros(2, device=saved[0].device).double()))
        *self.saved, self.z, self.is_known = self.memory.unbind()
        self.coefficient = torch.ones((), device=self.memory.device)

    def judge(self, norm: Tensor, held: Tensor, numbers: Sequence[float], flags: int) -> Tensor:
        """Learn from a norm, unless it is held back, and return what its gradients are to be multiplied by."""
        self._launch(norm, held, self.memory, self.coefficient, *numbers, flags)
        return self.coefficient


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that are multiplied together, each by its own number."""

    first: int
    count: int
    places: ctypes.Array[Any]
    """Where they lie: given to the kernel by value, since a table on the device would have to be sent in every step."""
    sizes: Tensor
    ends: Tensor
    """How many chunks there are up to the end of each tensor."""
    shrink: Tensor


class FusedAdaGC:
    """The kernels of AdaGC: one decides about all tensors, one multiplies them."""

    CHUNK = 1 << 14
    """Elements that a block multiplies before it goes on to others; all are alike large, whatever tensor they are of."""
    BLOCKS = 1024
    """Enough to keep a device busy with the largest tensor; half as many take as long, a quarter a third longer."""
    AT_ONCE = 256
    """Tensors for one launch: their addresses take half of what a kernel may be given by value."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._judge = compiled(_ADAGC, "self_healing_adagc", _CONSTANTS)
        sized = f"#define AT_ONCE {self.AT_ONCE}\n#define CHUNK {self.CHUNK}LL\n{_SCALE}"
        self._scale = compiled(sized, "self_healing_scale", {})
        self.shrink = torch.ones(count, device=device)
        self.whole = torch.ones((), device=device)
        """What the norm of all tensors together was multiplied by."""
        self._sizes: list[int] = []
        self._groups: list[_Group] = []

    def judge(  # noqa: PLR0917  # as the kernel takes them
        self, total: Tensor, held: Tensor, each: Tensor, gammas: Tensor, steps: Tensor, numbers: Sequence[float]
    ) -> Tensor:
        """Learn from the norms, in place, unless they are held back; return what each gradient is multiplied by."""
        self._judge(total, held, each, gammas, steps, self.shrink, self.whole, len(each), *numbers, block=(256, 1, 1))
        return self.shrink

    def scale_(self, tensors: Sequence[Tensor]) -> None:
        """Multiply single-precision tensors in place by what `judge` has decided."""
        sizes = [*map(Tensor.numel, tensors)]
        if sizes != self._sizes:
            self._sizes = sizes
            self._groups = [self._group(first) for first in range(0, len(sizes), self.AT_ONCE)]
        places = [*map(Tensor.data_ptr, tensors)]
        for group in self._groups:
            group.places[: group.count] = places[group.first : group.first + group.count]
            self._scale(
                group.places, group.sizes, group.ends, group.shrink, group.count, grid=(self.BLOCKS, 1, 1), block=(256, 1, 1)
            )  # fmt: skip

    def _group(self, first: int) -> _Group:
        """Return the tensors from this one on; waits for the device, once for tensors of the same sizes."""
        sizes = torch.tensor(self._sizes[first : first + self.AT_ONCE])
        ends = (-(-sizes // self.CHUNK)).cumsum(0)
        here = self.shrink.device
        array = (ctypes.c_void_p * self.AT_ONCE)()
        return _Group(first, len(sizes), array, sizes.to(here), ends.to(here), self.shrink[first : first + len(sizes)])


def can_scale(tensors: Sequence[Tensor], device: torch.device) -> bool:
    """Say whether `FusedAdaGC.scale_` may be given these tensors, which have one device and one dtype."""
    first = tensors[0]
    return first.dtype is torch.float32 and first.device == device and all(map(Tensor.is_contiguous, tensors))
