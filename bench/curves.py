"""Losses as training produces them: noise, falling curves, failures, and healthy runs with a complication."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NOISES = ("gauss", "t4", "t3", "log-normal", "AR 0.7")
EVENTS = ("spike", "+3 sigma", "ramp", "collapse")
LEVEL, SIGMA, START = 2.5, 0.1, 10.5


def noise(kind: str, n: int, rng: np.random.Generator) -> Array:
    """Return noise of mean about zero and unit variance."""
    if kind == "gauss":
        return rng.standard_normal(n)
    if kind in ("t4", "t3"):
        freedom = int(kind[1])
        return rng.standard_t(freedom, n) / math.sqrt(freedom / (freedom - 2))
    if kind == "log-normal":
        s = 0.6
        spread = math.sqrt((math.exp(s * s) - 1) * math.exp(s * s))
        return (np.exp(s * rng.standard_normal(n)) - math.exp(s * s / 2)) / spread
    drawn, rho = rng.standard_normal(n), 0.7
    out, x = np.empty(n), float(rng.standard_normal())
    for i, e in enumerate(drawn * math.sqrt(1 - rho * rho)):
        x = rho * x + e
        out[i] = x
    return out


CURVES: dict[str, Callable[[Array], Array]] = {
    "power 0.5": lambda t: LEVEL + 8 * (1 + t / 20) ** -0.5,
    "power 0.3": lambda t: 1.7 + 8.8 * (1 + t / 5) ** -0.3,
    "exp 15": lambda t: LEVEL + 8 * np.exp(-t / 15),
    "exp 100": lambda t: LEVEL + 8 * np.exp(-t / 100),
    "exp 600": lambda t: 1.0 + 2 * np.exp(-t / 600),
}


def observations(loss: Array, rng: np.random.Generator) -> Iterator[dict[str, float]]:
    """Yield complete observations around a loss curve, everything else healthy."""
    norms = np.exp(0.35 * rng.standard_normal(len(loss)))
    times = 0.5 * np.exp(0.05 * rng.standard_normal(len(loss)))
    for x, norm, seconds in zip(loss.tolist(), norms.tolist(), times.tolist(), strict=True):
        yield {"loss": x, "grad_norm": norm, "learning_rate": 1e-3, "step_time_s": seconds, "memory_allocated": 10.0}


def healthy_losses(kind: str, shape: str, total: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield the losses of healthy runs, `total` observations altogether."""
    if shape == "flat":
        yield LEVEL + SIGMA * noise(kind, total, rng)
        return
    length = 400 if shape == "short" else 2000
    curves = list(CURVES.values())
    for i in range(total // length):
        curve = curves[i % len(curves)](np.arange(length, dtype=float)) if shape == "falling" else LEVEL
        yield curve + SIGMA * noise(kind, length, rng)


def change(event: str, base: Array, start: float, after: Array) -> Array:
    """Return what the loss does after the onset."""
    if event == "spike":
        out = base.copy()
        out[0] += 2.0
        return out
    if event == "+3 sigma":
        return base + 3 * SIGMA
    if event == "ramp":
        return base + 0.04 * SIGMA * np.arange(len(base))
    return start + SIGMA * after


def awkward_losses(kind: str, name: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return loss and learning rate of a healthy run with a complication."""
    n = 1500
    t = np.arange(n, dtype=float)
    base = LEVEL + 4 * np.exp(-t / 150)
    rate = np.full(n, 1e-3)
    e = SIGMA * noise(kind, n, rng)
    if name == "sine of 1.5 sigma, period 200":
        base = base + 1.5 * SIGMA * np.sin(2 * np.pi * t / 200)
    elif name == "sine of 3 sigma, period 60":
        base = base + 3 * SIGMA * np.sin(2 * np.pi * t / 60)
    elif name == "staircase at epochs":
        base = LEVEL + 2.0 * 0.6 ** (t // 200)
    elif name == "noise doubles":
        e = np.where(t > 700, 2.0, 1.0) * e
    elif name == "spikes of 3 steps":
        base = base + np.where(t % 250 > 246, 2.0, 0.0)
    elif name == "bump after warm-up":
        rate = 1e-3 * np.minimum(1.0, t / 100)
        base = base + 4 * SIGMA * np.exp(-(((t - 110) / 10) ** 2))
    elif name == "every 16th batch long":
        base = base + np.where(t % 16 == 0, 0.5, 0.0)
    elif name == "averages of 10":
        e = np.convolve(e, np.ones(10) / 10, mode="same")[::10].repeat(1)
        base, rate = base[::10], rate[::10]
    elif name == "rate restarts":
        rate = 1e-3 * (0.05 + 0.95 * (1 + np.cos(np.pi * (t % 500) / 500)) / 2)
        base = base + 3 * SIGMA * (rate / 1e-3) * (t > 490)
    elif name == "converged to 0.002":
        base, e = 0.002 + 2 * np.exp(-t / 60), 0.01 * SIGMA * np.abs(e) / SIGMA
    return base + e, rate


AWKWARD = (
    "sine of 1.5 sigma, period 200", "sine of 3 sigma, period 60", "staircase at epochs", "noise doubles",
    "spikes of 3 steps", "bump after warm-up", "every 16th batch long", "averages of 10", "rate restarts",
    "converged to 0.002",
)  # fmt: skip
