"""The judgement of one gradient norm in a single CUDA kernel.

As ordinary operations it would be some eighty, and each costs the host ten to thirty microseconds in every step of every
run. The kernel keeps the baseline in device memory, decides, and writes the telemetry straight into pinned host memory, so
that nothing has to be copied afterwards. torch compiles it when it is first used (a fraction of a second). The interface
is not a public one of torch, so where anything about it is not as known, the host decides instead and has to wait for
the norm (see `gate`); a test compares the two.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .baseline import constants
from .norms import SMALLEST

_LOG = logging.getLogger(__name__)

FusedT = TypeVar("FusedT")

READING = ("loss", "is_sound", "is_applied", "norm", "coefficient", "z", "found_inf", "is_outlier", "typical")
"""What one row of telemetry holds, in this order."""

STATE = 7
"""Numbers of the baseline's state; they come first in the kernel's memory."""

HELD, COEFFICIENT, FOUND_INF, SKIP, Z_SCORE, IS_OUTLIER, TYPICAL = range(STATE, 14)
"""Where the kernel's memory holds what has been decided."""

_JUDGE = """
extern "C" __global__ void self_healing_judge(
    const float* norm_, const float* loss_, const float* limit_, float* memory, float* row, double max_norm, int flags
) {
    const bool clips = flags & 1, holds = flags & 2, by_loss = flags & 4;
    const float norm = *norm_, loss = *loss_;
    const float location = memory[0], drift = memory[1], scale = memory[2], count = memory[3];
    const float streak = memory[4], newest = memory[5], before = memory[6], held = memory[7];

    const float x = logf(norm);
    const bool finite = norm - norm == 0.0f, usable = x - x == 0.0f, ready = count >= READY;
    const float level = location + fmaxf(drift, 0.0f);
    const float distance = x - level;
    const float least = fminf(fmaxf(Z * scale, LOG_RATIO), LOG_CERTAIN_RATIO);
    const bool strange = usable && ready && fabsf(distance) > least;
    const bool outlier = strange && distance > 0.0f;
    const float z = usable && ready ? distance / scale : 0.0f;

    // torch divides by multiplying with the reciprocal; anything else would round differently.
    float coefficient = *limit_;
    if (max_norm > 0.0) coefficient = fminf(coefficient, fminf((1.0f / (norm + SMALLEST)) * (float)max_norm, 1.0f));
    if (clips && outlier) coefficient = fminf(coefficient, expf(CLIP_Z * CLIP_Z * scale / z - distance));
    if (!finite) coefficient = 1.0f;

    const bool lost = by_loss && loss - loss != 0.0f, unsound = !finite || lost;
    const bool skip = holds && (unsound || held > 0.5f);
    if (holds) memory[7] = skip;
    memory[8] = coefficient; memory[9] = !finite; memory[10] = skip;
    memory[11] = z; memory[12] = outlier; memory[13] = ready ? expf(level) : 0.0f;
    row[0] = loss; row[1] = !unsound; row[2] = !skip; row[3] = norm; row[4] = coefficient;
    row[5] = z; row[6] = !finite; row[7] = outlier; row[8] = memory[13];

    if (held > 0.5f || lost) return;  // it is learned when it is made up
    if (usable && strange) {
        memory[5] = x; memory[6] = newest; memory[4] = streak + 1.0f;
        if (streak + 1.0f >= NEW_NORMAL_AFTER) {
            memory[0] = fminf(fmaxf(x, fminf(newest, before)), fmaxf(newest, before));
            memory[1] = 0.0f; memory[3] = READY; memory[4] = 0.0f;
        }
    } else if (usable) {
        const float start = count < 1.0f ? x : location;
        const float away = x - start, reach = WINSOR * scale;
        const float pull = fminf(fmaxf(away, -reach), reach);
        const float spread = fminf(fabsf(away - drift), reach) * MEAN_ABS_TO_SIGMA;
        const float rate = fmaxf(powf(count + 1.0f, LOCATION_POWER), LOCATION_RATE);
        const float slow = fmaxf(1.0f / (count + ASSUMED_WEIGHT), SCALE_RATE);
        memory[0] = start + rate * pull;
        memory[1] = drift + rate * (pull - drift);
        memory[2] = fmaxf(scale + slow * (spread - scale), SMALLEST_SCALE);
        memory[3] = fminf(count + 1.0f, LARGEST_COUNT);
        memory[4] = 0.0f;
    }
}
"""


class Flags(NamedTuple):
    """What a judgement is to do beside measuring."""

    clips: bool
    """Bring outliers down."""
    holds: bool
    """Say that the update must be skipped where it is unsound, and so must every one after it."""
    by_loss: bool
    """A loss that is not finite makes an update unsound, not only the gradients."""


class FusedJudge:
    """The kernel and its memory, on one device."""

    def __init__(self, state: Tensor, launch: Kernel) -> None:
        self.memory = torch.cat((state, torch.zeros(TYPICAL + 1 - STATE, device=state.device)))
        self._launch = launch
        self._one = torch.ones((), device=state.device)
        self._zero = torch.zeros((), device=state.device)
        self._row = torch.zeros(len(READING), device=state.device)
        places = self.memory.unbind()
        self.held = places[HELD]
        """One where an update was skipped and has not been made up yet: what was known before the next judgement."""
        self.coefficient, self.found_inf, self.skip = places[COEFFICIENT], places[FOUND_INF], places[SKIP]
        self.z, self.is_outlier, self.typical = places[Z_SCORE], places[IS_OUTLIER], places[TYPICAL]

    @property
    def state(self) -> Tensor:
        """The baseline's numbers; they lie in the kernel's memory."""
        return self.memory[:STATE]

    def judge(
        self,
        norm: Tensor,
        *,
        loss: Tensor | None,
        limit: Tensor | None,
        max_norm: float | None,
        row: Tensor | None,
        flags: Flags,
    ) -> Tensor:
        """Judge a norm and learn from it; return the row that was written, `row` itself where it is given."""
        written = self._row if row is None else row
        self._launch(
            norm,
            self._zero if loss is None else loss,
            self._one if limit is None else limit,
            self.memory,
            written,
            float(max_norm or 0.0),
            flags.clips + 2 * flags.holds + 4 * flags.by_loss,
        )
        return written

    def release(self) -> None:
        """Let the next update through although one before it was skipped."""
        self.held.zero_()


def fused_judge(state: Tensor) -> FusedJudge | None:
    """Return the kernel on the device of a baseline's state, or None where there is none."""

    def make() -> FusedJudge:
        launch = compiled(_JUDGE, "self_healing_judge", {**constants(), "SMALLEST": SMALLEST})
        fused = FusedJudge(state.clone(), launch)
        nothing = Flags(clips=False, holds=False, by_loss=False)
        fused.judge(state[0].abs() + 1.0, loss=None, limit=None, max_norm=1.0, row=None, flags=nothing)
        fused.memory[:STATE].copy_(state)
        return fused

    return fused_or_none(make, state.device)


def fused_or_none(
    make: Callable[[], FusedT], device: torch.device, otherwise: str = "the host waits for each step's gradient norm"
) -> FusedT | None:
    """Return what `make` builds, or None where this device or this torch has no kernels of ours; say what follows."""
    if device.type != "cuda" or device.index != torch.cuda.current_device():
        return None
    try:
        return make()
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        # RuntimeError is what a missing or failing compiler raises, AttributeError what a torch before 2.9.
        _LOG.warning("our CUDA kernel could not be used, so %s: %s", otherwise, error)
        return None


Argument = Tensor | float | ctypes.Array[Any]


class Kernel:
    """A compiled kernel that is launched on the current stream.

    torch launches one in about a hundred microseconds, most of which goes into loading the driver's library anew.
    """

    def __init__(self, compiled_kernel: Any) -> None:
        self._function = compiled_kernel.func
        self._driver = ctypes.CDLL("libcuda.so.1")

    def __call__(
        self,
        *arguments: Argument,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        """Launch it; integers arrive as `int`, other numbers as `double`, tensors as pointers that it may write to.

        An array arrives by value, as a `struct` that holds it.
        """
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))  # noqa: SLF001
        error = self._driver.cuLaunchKernel(self._function, *grid, *block, 0, stream, pointers, None)
        if error:
            raise RuntimeError(f"the CUDA driver refused to launch our kernel (error {error})")


def _as_c(argument: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_double | ctypes.Array[Any]:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, ctypes.Array):
        return argument
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_double(argument)


@functools.cache
def _compiled(source: str, name: str) -> Kernel:
    if torch.version.hip:
        raise RuntimeError("our kernels are written for CUDA")
    return Kernel(torch.cuda._compile_kernel(source, name))  # noqa: SLF001  # see above


def compiled(source: str, name: str, values: Mapping[str, float]) -> Kernel:
    """Return a kernel, with constants of single precision in the place of their names."""
    defined = "".join(f"#define {constant} {float(value)!r}f\n" for constant, value in values.items())
    return _compiled(defined + source, name)
