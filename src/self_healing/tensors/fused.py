"""The baseline of the gradient norm in two CUDA kernels instead of some sixty.

Each of those operations would cost the host some ten microseconds and the device two, in every step of every run. The
kernels are compiled by torch itself when they are first used (a fifth of a second, then kept on disk). The interface
is not a public one of torch, so where anything about it is not as known, nothing is fused and the same is computed
by ordinary operations; a test compares the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

Kernel = Callable[..., Sequence[Tensor]]

_LOG = logging.getLogger(__name__)

_COMPARE = """
    T x = log(norm);
    bool usable = x - x == T(0);
    bool ready = count >= T(READY);
    T level = location + (drift > T(0) ? drift : T(0));
    T distance = x - level;
    T least = T(Z) * scale;
    least = least < T(LOG_RATIO) ? T(LOG_RATIO) : (least > T(LOG_CERTAIN_RATIO) ? T(LOG_CERTAIN_RATIO) : least);
    bool strange = usable && ready && (distance < T(0) ? -distance : distance) > least;
"""

_JUDGE = """
template <typename T> void self_healing_judge(
    T norm, T limit, T location, T drift, T scale, T count,
    T& coefficient, T& z, T& found_inf, T& is_outlier, T& typical
) {COMPARE
    bool finite = norm - norm == T(0);
    bool outlier = strange && distance > T(0);
    z = usable && ready ? distance / scale : T(0);
    coefficient = limit;
    if (CLIP && outlier) {
        T share = exp(T(CLIP_Z) * T(CLIP_Z) * scale / z - distance);
        coefficient = share < limit ? share : limit;
    }
    if (!finite) coefficient = T(1);
    found_inf = finite ? T(0) : T(1);
    is_outlier = outlier ? T(1) : T(0);
    typical = ready ? exp(level) : T(0);
}
"""

_LEARN = """
template <typename T> void self_healing_learn(
    T norm, T location, T drift, T scale, T count, T streak, T newest, T before,
    T& location_now, T& drift_now, T& scale_now, T& count_now, T& streak_now, T& newest_now, T& before_now
) {COMPARE
    location_now = location; drift_now = drift; scale_now = scale; count_now = count;
    streak_now = streak; newest_now = newest; before_now = before;
    if (usable && strange) {
        newest_now = x; before_now = newest; streak_now = streak + T(1);
        if (streak_now >= T(NEW_NORMAL_AFTER)) {
            T low = newest < before ? newest : before;
            T high = newest < before ? before : newest;
            location_now = x < low ? low : (x > high ? high : x);
            drift_now = T(0); count_now = T(READY); streak_now = T(0);
        }
    } else if (usable) {
        T start = count < T(1) ? x : location;
        T away = x - start;
        T reach = T(WINSOR) * scale;
        T pull = away < -reach ? -reach : (away > reach ? reach : away);
        T spread = away - drift < T(0) ? drift - away : away - drift;
        spread = (spread < reach ? spread : reach) * T(MEAN_ABS_TO_SIGMA);
        T rate = pow(count + T(1), T(LOCATION_POWER));
        rate = rate > T(LOCATION_RATE) ? rate : T(LOCATION_RATE);
        T slow = T(1) / (count + T(ASSUMED_WEIGHT));
        slow = slow > T(SCALE_RATE) ? slow : T(SCALE_RATE);
        location_now = start + rate * pull;
        drift_now = drift + rate * (pull - drift);
        scale_now = scale + slow * (spread - scale);
        scale_now = scale_now > T(SMALLEST_SCALE) ? scale_now : T(SMALLEST_SCALE);
        count_now = count + T(1) < T(LARGEST_COUNT) ? count + T(1) : T(LARGEST_COUNT);
        streak_now = T(0);
    }
}
"""


class FusedBaseline:
    """The kernels of the baseline, made when first asked for."""

    def __init__(self, constants: Mapping[str, float]) -> None:
        self.enabled = True
        self._constants = constants
        self._made: dict[bool, tuple[Kernel, Kernel]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}

    def kernels(self, device: torch.device, *, clip: bool) -> tuple[Kernel, Kernel] | None:
        """Return (judge, learn) for this device, or None where there are none."""
        if not self.enabled or device.type != "cuda":
            return None
        if clip not in self._made:
            self._make(device, clip=clip)
        return self._made.get(clip)

    def _make(self, device: torch.device, *, clip: bool) -> None:
        try:
            judge, learn = self._compiled(_JUDGE, 5, clip=clip), self._compiled(_LEARN, 7, clip=clip)
            one = torch.ones((), device=device)
            judge(*[one] * 6)
            learn(*[one] * 8)
        except (AttributeError, ImportError, RuntimeError, TypeError) as error:
            # RuntimeError is what a missing or failing compiler raises.
            _LOG.warning("the norm baseline takes some sixty small kernels a step, its fused ones failed: %s", error)
            self.enabled = False
            return
        self._made[clip] = judge, learn

    def _compiled(self, template: str, outputs: int, *, clip: bool) -> Kernel:
        from torch.cuda.jiterator import _create_multi_output_jit_fn  # noqa: PLC0415  # private: may be missing

        code = template.replace("COMPARE", _COMPARE).replace("CLIP &&", "true &&" if clip else "false &&")
        for name, value in self._constants.items():
            code = code.replace(f"T({name})", f"T({float(value)!r})")
        return cast("Kernel", _create_multi_output_jit_fn(code, outputs))
