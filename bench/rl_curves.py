"""Healthy RL and preference runs that are made up, and what goes wrong in them: long, noisy, of every family."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from curves import Array, noise

Columns = dict[str, Array]
Draw = Callable[[], Array]


def grpo(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return a run that earns more and more: pace is the number of steps in which it makes most of its gain."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731  # one line for twelve columns
    gain = 1 - np.exp(-np.arange(n) / pace)
    scale = float(rng.choice([0.2, 1.0, 10.0]))
    entropy, length = float(rng.choice([0.35, 1.2])), float(rng.choice([60.0, 250.0, 1500.0]))
    return {
        "reward": scale * (0.2 + 0.6 * gain + 0.12 * draw()),
        "reward_std": scale * 0.3 * np.exp(0.25 * draw()),
        "frac_reward_zero_std": np.clip(0.25 + 0.3 * gain + 0.12 * draw(), 0, 1),
        "entropy": entropy * (0.3 + 0.7 * (1 - gain)) * np.exp(0.15 * draw()),
        "kl": (0.6 * gain + 0.15 * np.arange(n) / n) * np.exp(0.5 * draw()),
        "completions/mean_length": length * (1 + 0.6 * gain) * np.exp(0.2 * draw()),
        "completions/clipped_ratio": np.clip(0.12 + 0.08 * draw(), 0, 1),
        "clip_ratio/region_mean": np.clip(0.03 + 0.03 * draw(), 0, 1),
        "sampling/sampling_logp_difference/mean": 0.03 * np.exp(0.3 * draw()),
        "sampling/importance_sampling_ratio/min": np.clip(0.3 * np.exp(0.4 * draw()), 0, 1),
        "sampling/importance_sampling_ratio/mean": 1 + 0.02 * draw(),
        "grad_norm": 0.3 * np.exp(0.4 * draw()) * (rng.random(n) > 0.05),
        "loss": 0.01 * draw(),
    }


def ppo(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return a PPO run, whose divergence is a sum over tokens."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    return {
        "reward": -1 + 3 * gain + 0.5 * draw(),
        "objective/kl": 12 * gain * np.exp(0.3 * draw()),
        "policy/entropy_avg": (0.4 + 0.8 * (1 - gain)) * np.exp(0.15 * draw()),
        "policy/clipfrac_avg": np.clip(0.08 + 0.04 * draw(), 0, 1),
        "policy/approxkl_avg": 0.02 * np.exp(0.4 * draw()),
        "loss/value_avg": (0.15 + 0.5 * (1 - gain)) * np.exp(0.4 * draw()),
    }


def dpo(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return a DPO run: margins grow, chosen answers become a little less likely."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    margins = 1.2 * gain + 0.35 * np.sqrt(gain) * draw()
    lengths, chosen = 40 * draw(), -0.3 * gain + 0.2 * gain * draw()
    return {
        "loss": np.log1p(np.exp(-np.clip(margins, -20, 20))),
        "rewards/margins": margins,
        "rewards/accuracies": np.clip(0.5 + 0.22 * gain + 0.09 * draw(), 0, 1),
        "rewards/chosen": chosen,
        "logps/chosen": -260 + lengths - 30 * gain,
        "logps/rejected": -250 + lengths - 110 * gain,
        "entropy": 1.2 * np.exp(0.1 * draw()),
        "grad_norm": 20 * np.exp(0.4 * draw()),
    }


def kto(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return a KTO run of small batches, some of which lack one kind of example."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    size = int(rng.choice([1, 2, 4, 16]))
    good = rng.binomial(size, 0.5, n)
    chosen, rejected = 0.5 * gain + 0.25 * gain * draw(), -0.4 * gain + 0.25 * gain * draw()
    chosen[good == 0] = np.nan
    rejected[good == size] = np.nan
    lengths = 40 * draw()
    return {
        "loss": 0.5 - 0.15 * gain + 0.03 * gain * draw(),
        "kl": np.maximum(0, 6 * gain + 2 * gain * draw()),
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": chosen - rejected,
        "logps/chosen": np.where(good > 0, -260 + lengths + 20 * gain, np.nan),
        "logps/rejected": np.where(good < size, -250 + lengths - 80 * gain, np.nan),
    }


def orpo(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return an ORPO run, whose margins are tiny."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    nll = (0.7 + 1.1 * (1 - gain)) * np.exp(0.08 * draw())
    odds = 0.05 + 0.6 * gain + 0.25 * draw()
    return {
        "loss": nll + 0.05,
        "nll_loss": nll,
        "log_odds_chosen": odds,
        "rewards/margins": 0.02 * gain + 0.01 * draw(),
        "rewards/accuracies": np.clip(0.5 + 0.2 * gain + 0.09 * draw(), 0, 1),
        "logps/chosen": -nll,
        "logps/rejected": -nll - odds,
    }


def reward_model(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return the training of a reward model on pairs people have judged."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    return {
        "loss": 0.69 - 0.15 * gain + 0.04 * draw(),
        "accuracy": np.clip(0.5 + 0.18 * gain + 0.09 * draw(), 0, 1),
        "margin": 0.9 * gain + 0.2 * draw() * gain,
        "mean_reward": 0.3 * draw(),
    }


def ebft(n: int, kind: str, rng: np.random.Generator, pace: float) -> Columns:
    """Return an EBFT run."""
    draw: Draw = lambda: noise(kind, n, rng)  # noqa: E731
    gain = 1 - np.exp(-np.arange(n) / pace)
    return {
        "reward": 0.2 + 0.4 * gain + 0.1 * draw(),
        "ebft/alignment": 0.2 + 0.4 * gain + 0.08 * draw(),
        "ebft/diversity": 0.05 * np.exp(0.4 * draw()),
        "ebft/cfm_loss": (4 + 8 * (1 - gain)) * np.exp(0.15 * draw()),
    }


FAMILIES: dict[str, Callable[[int, str, np.random.Generator, float], Columns]] = {
    "GRPO": grpo, "PPO": ppo, "DPO": dpo, "KTO": kto, "ORPO": orpo, "reward model": reward_model, "EBFT": ebft,
}  # fmt: skip


def towards(column: Array, at: int, goal: float, steps: float, rng: np.random.Generator, spread: float = 0.1) -> None:
    """Let a column go to a value within so many steps, in place, with noise of its own."""
    after = np.arange(len(column) - at)
    share = np.clip((after + 1) / steps, 0, 1)
    column[at:] = column[at:] * (1 - share) + share * goal * np.exp(spread * rng.standard_normal(len(after)))


Change = Callable[[Columns, int, np.random.Generator], None]


def _to(name: str, goal: float, steps: float = 10) -> Change:
    return lambda run, at, rng: towards(run[name], at, goal, steps, rng)


def _both(*changes: Change) -> Change:
    def change(run: Columns, at: int, rng: np.random.Generator) -> None:
        for each in changes:
            each(run, at, rng)

    return change


def _back(name: str) -> Change:
    """Let a column go back to where it began."""
    return lambda run, at, rng: towards(run[name], at, float(np.mean(run[name][:16])), 10, rng)


def _never(name: str) -> Change:
    """Let a column be noise around its beginning all the time."""

    def change(run: Columns, _at: int, rng: np.random.Generator) -> None:
        column = run[name]
        width = float(np.nanstd(np.diff(column))) / math.sqrt(2)
        column[:] = float(np.nanmean(column[:4])) + width * rng.standard_normal(len(column))

    return change


SICK: dict[str, tuple[str, Change]] = {
    "reward-flat": ("GRPO", _never("reward")),
    "reward-no-signal": ("GRPO", _both(_to("frac_reward_zero_std", 0.98), _back("reward"))),
    "reward-collapse": ("GRPO", _back("reward")),
    "policy-gradient-zero": ("GRPO", _to("grad_norm", 0.0, 1)),
    "entropy-collapse": ("GRPO", _both(_to("entropy", 0.003), _back("reward"))),
    "entropy-runaway": ("GRPO", _both(_to("entropy", 4.0, 30), _back("reward"))),
    "kl-runaway": ("GRPO", _both(_to("kl", 9.0), _back("reward"))),
    "sampler-mismatch": ("GRPO", _to("sampling/sampling_logp_difference/mean", 1.5)),
    "policy-steps-too-large": ("GRPO", _to("clip_ratio/region_mean", 0.5)),
    "completions-truncated": ("GRPO", _to("completions/clipped_ratio", 0.95)),
    "length-runaway": ("GRPO", _both(_to("completions/mean_length", 9000.0, 40), _back("reward"))),
    "length-collapse": ("GRPO", _both(_to("completions/mean_length", 3.0), _back("reward"))),
    "value-loss-growing": ("PPO", _to("loss/value_avg", 4.0)),
    "dpo-at-chance": ("DPO", _both(_to("loss", math.log(2), 1), _to("rewards/margins", 0.001, 1))),
    "preference-margin-collapse": ("DPO", _to("rewards/margins", 0.01)),
    "preference-likelihood-falling": ("DPO", _both(_to("logps/chosen", -600.0, 40), _to("logps/rejected", -900.0, 40))),
    "preference-accuracy-stuck": ("ORPO", _never("rewards/accuracies")),
    "kto-imbalance": ("KTO", lambda run, _at, rng: run["rewards/rejected"].__setitem__(rng.random(len(run["kl"])) < 0.8, np.nan)),
    "odds-ratio-falling": ("ORPO", _back("log_odds_chosen")),
    "preference-nll-rising": ("ORPO", _to("nll_loss", 2.0)),
    "ebft-off-course": ("EBFT", _to("ebft/diversity", 1.4)),
}  # fmt: skip
"""For every rule a family, and what happens to a healthy run of it from one observation on."""

FROM_THE_START = {"reward-flat", "dpo-at-chance", "preference-accuracy-stuck", "kto-imbalance"}
"""Rules about what never happens: their runs are sick from the beginning."""
