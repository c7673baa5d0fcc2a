"""Measure what one look at the gradients costs: microseconds per step, medians of interleaved rounds.

    python bench/clipping.py                # the CPU, and the GPU where there is one

`host` is the time until the calls return, `whole` the time until the device has finished.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from self_healing.tensors.adagc import AdaGC
from self_healing.tensors.gate import GradientGate
from self_healing.tensors.zclip import ZClip

TENSORS = 50


def parameters(device: torch.device, width: int) -> list[Tensor]:
    """Half matrices, half vectors, as in a transformer."""
    made = []
    for i in range(TENSORS):
        shape = (width, width) if i % 2 == 0 else (width,)
        made.append(torch.nn.Parameter(torch.zeros(shape, device=device)))
        made[-1].grad = torch.randn(shape, device=device) / (width * 5.0)
    return made


def rivals(params: list[Tensor]) -> dict[str, Callable[[], object]]:
    grads = [p.grad for p in params]
    gate, measuring = GradientGate(), GradientGate(clip_outliers=False)
    always, per_tensor = GradientGate(always=ZClip()), GradientGate(per_tensor=AdaGC())
    zclip, adagc = ZClip(), AdaGC()
    return {
        "torch clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(params, 1.0),
        "GradientGate": lambda: gate.judge(grads, 1.0),
        "GradientGate, measuring": lambda: measuring.judge(grads, 1.0),
        "GradientGate, ZClip": lambda: always.judge(grads, 1.0),
        "GradientGate, AdaGC": lambda: per_tensor.judge(grads, None),
        "ZClip": lambda: zclip.step(params),
        "AdaGC": lambda: adagc.step(params),
    }


def measure(device: torch.device, width: int, rounds: int) -> None:
    params = parameters(device, width)
    calls = rivals(params)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    host: dict[str, list[float]] = {name: [] for name in calls}
    whole: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 20):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            call()
            called = time.perf_counter()
            wait()
            if i >= 20:
                host[name].append(called - start)
                whole[name].append(time.perf_counter() - start)
    size = sum(p.numel() for p in params) / 1e6
    print(f"\n{device.type}, {TENSORS} tensors, {size:.2f} M numbers, {rounds} rounds, torch {torch.__version__}")
    print(f"{'':26s}{'host us':>10s}{'whole us':>10s}{'over torch':>12s}")
    first = None
    for name in calls:
        mine, all_of_it = (statistics.median(times[name]) * 1e6 for times in (host, whole))
        first = all_of_it if first is None else first
        print(f"{name:26s}{mine:10.0f}{all_of_it:10.0f}{all_of_it - first:+12.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(torch.device("cpu"), 64, options.rounds)
    if torch.cuda.is_available():
        measure(torch.device("cuda"), 64, options.rounds)
        measure(torch.device("cuda"), 2048, options.rounds)


if __name__ == "__main__":
    main()
