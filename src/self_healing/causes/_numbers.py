"""What several causes read from the past in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ..core.history import History
from ..core.incident import Incident

FULL_RATES = (1e-5, 5e-5)
"""Learning rates that usually work for fine-tuning all weights."""
LORA_RATES = (1e-4, 3e-4)
"""Learning rates that usually work for LoRA."""

ENOUGH = 8
"""Values below which nothing is said about growth."""

CALM = 1.5
"""How much larger a calm series may become at the most."""
FAR = 20.0
"""A loss of so many times its usual from one step to the next: a batch can do that, an update at a rate that was borne does not."""

RL_WORDS = ("grpo", "rloo", "ppo")


def number(past: History, fact: str) -> float | None:
    """Return a fact as a finite number, or None where it is unknown or something else."""
    value = past.facts.get(fact)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def word(past: History, fact: str) -> str:
    """Return a fact as a lower-case word, empty where it is unknown."""
    value = past.facts.get(fact)
    return value.lower() if isinstance(value, str) else ""


def finite_latest(past: History, metric: str) -> float | None:
    """Return the newest value of a metric if it is finite, else None."""
    value = past.latest(metric)
    return value if value is not None and math.isfinite(value) else None


def growth(values: Sequence[float]) -> float:
    """Return how many times larger the second half of a series is than the first; 1.0 where nobody can tell."""
    if len(values) < ENOUGH:
        return 1.0
    half = len(values) // 2
    before, after = median(values[:half]), median(values[half:])
    return after / before if before > 0 and after > 0 else 1.0


def usual(past: History, metric: str, n: int = 32) -> float | None:
    """Return the median of the last values that were normal, or None where there are too few."""
    values = past.last(metric, n)
    return median(values) if len(values) >= ENOUGH else None


def jump_within_a_step(incident: Incident, past: History) -> float:
    """Return how many times its usual the loss has become from one step to the next, out of calm; 0.0 where it has not.

    A log that shows every hundredth step says nothing about that, nor a loss that was rising already.
    """
    newest, normal, previous = finite_latest(past, "loss"), usual(past, "loss"), past.previous("loss")
    now, before = past.step_ago("loss", 0), past.step_ago("loss", 1)
    if newest is None or normal is None or normal <= 0 or previous is None or now is None or before is None:
        return 0.0
    is_calm = all(growth(past.before(incident, metric, 32)) <= CALM for metric in ("loss", "grad_norm"))
    is_jump = now - before == 1 and previous <= CALM * normal and newest >= FAR * normal
    return newest / normal if is_calm and is_jump else 0.0


def usual_rates(past: History) -> tuple[float, float] | None:
    """Return the learning rates that usually work for this kind of run; None where no such range is known.

    The ranges hold for supervised fine-tuning. Preference and RL trainers run far lower, training from scratch
    far higher, so without the fact `lora` or a trainer that says SFT nothing is claimed.
    """
    trainer = word(past, "trainer")
    if trainer and "sft" not in trainer:
        return None
    lora = past.facts.get("lora")
    if isinstance(lora, bool):
        return LORA_RATES if lora else FULL_RATES
    return FULL_RATES if trainer else None


def is_rl(past: History) -> bool:
    """Say whether the run learns from rewards, where a loss near zero is normal."""
    return past.finite_count("reward") > 0 or any(name in word(past, "trainer") for name in RL_WORDS)


def began_in_backward(past: History) -> bool:
    """Say whether the gradient norm stopped being finite before the loss did."""
    return past.nonfinite_run("grad_norm") > past.nonfinite_run("loss")


def began_in_forward(past: History) -> bool:
    """Say whether the loss stopped being finite no later than the gradient norm, the one before being fine."""
    loss_run = past.nonfinite_run("loss")
    return loss_run > 0 and past.nonfinite_run("grad_norm") <= loss_run
