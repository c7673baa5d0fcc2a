"""Canonical metric names and numbers: what different programs call the same thing, and how they print it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

STEP_NAMES = (
    "step",
    "global_step",
    "iteration",
    "iter",
    "steps",
    "update",
    "num_updates",
    "current_steps",
    "batch_idx",
)
"""Spellings of the step, best first; `train/step`, `trainer/global_step` and `_step` are found too."""

TIME_NAMES = ("_timestamp", "timestamp", "wall_time", "time_s", "_runtime", "elapsed")
"""Spellings of the time in seconds, best first."""

SYNONYMS = {
    "lr": "learning_rate",
    "train_lr": "learning_rate",
    "gradient_norm": "grad_norm",
    "grad_norm_total": "grad_norm",
    "gnorm": "grad_norm",
    "train_grad_norm": "grad_norm",
    "train_loss": "loss",
    "training_loss": "loss",
    "train_loss_step": "loss",
    "eval_loss": "eval_loss",
    "val_loss": "eval_loss",
    "valid_loss": "eval_loss",
    "validation_loss": "eval_loss",
    "step_time": "step_time_s",
    "completion_length": "completions/mean_length",
    "clip_ratio": "clip_ratio/region_mean",
    "sft_loss": "nll_loss",
    "objective/scores": "reward",
}
"""Other spellings of the metrics that rules read; `eval/x`, `val/x` and `train/x` are handled before."""

KNOWN = frozenset({"loss", "eval_loss", "grad_norm", "learning_rate", "reward", "perplexity", "accuracy"})
"""Names that show a table to be one of training metrics."""

HEALTH_MARKS = frozenset(
    {"reward", "rewards/chosen", "rewards/rejected", "margin", "objective/kl", "log_odds_chosen", "ebft/alignment"}
)
"""Metrics that show a run to learn from rewards or preferences."""

OF_STEPS = frozenset({"loss", "grad_norm", "learning_rate", "step_time_s", "epoch", "num_tokens", "total_flos"})
"""Metrics of steps, and counters, which say nothing of such a run's health."""

_PREFIXES = {
    "train/": "",
    "training/": "",
    "eval/": "eval_",
    "val/": "eval_",
    "valid/": "eval_",
    "validation/": "eval_",
}
PREFERENCE_REWARDS = frozenset({"chosen", "rejected", "margins", "accuracies", "mean", "std"})
"""What follows `rewards/` without being a reward function's name."""
_LONGEST_NUMBER = 64
_LARGEST_STEP = 10**15


def canonical(name: str) -> str:
    """Return the name a metric has in our signals: `train/loss` is `loss`, `eval/loss` is `eval_loss`.

    Example:
        >>> canonical("train/rewards/margins"), canonical("val_loss"), canonical("lr")
        ('rewards/margins', 'eval_loss', 'learning_rate')
        >>> canonical("completion_length"), canonical("rewards/format_reward")  # of TRL before 0.16
        ('completions/mean_length', 'rewards/format_reward/mean')
    """
    name = name.strip()
    for prefix, instead in _PREFIXES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            name = instead + name[len(prefix) :]
            break
    owner, _, last = name.partition("/")
    if owner == "rewards" and last and "/" not in last and last not in PREFERENCE_REWARDS:
        return f"{name}/mean"
    low = name.lower().replace(" ", "_")  # tables of notebooks are headed `Training Loss`
    return SYNONYMS.get(low, low if low in KNOWN or low == "epoch" else name)


def number(value: object) -> float | None:
    """Return a value as a float, numbers printed as text included; None for what is no number.

    Example:
        >>> number("1e-5"), number("NaN"), number(True), number("n/a")
        (1e-05, nan, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (len(value) > _LONGEST_NUMBER or not value.isascii()):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf if isinstance(value, int) and value > 0 else -math.inf


def step_number(value: object) -> int | None:
    """Return a value as a step, or None where it is no whole number in the range of steps."""
    found = number(value)
    if found is None or not 0 <= found <= _LARGEST_STEP or found != int(found):
        return None
    return int(found)


def is_step(name: str) -> bool:
    """Say whether a name is a spelling of the step."""
    return _step_rank(name) is not None


def _step_rank(name: str) -> int | None:
    owner, _, last = name.strip().lower().rpartition("/")
    if owner not in ("", "train", "trainer", "training"):  # time/step is no step
        return None
    last = last.lstrip("_")
    return STEP_NAMES.index(last) if last in STEP_NAMES else None


def _time_rank(name: str) -> int | None:
    name = name.strip().lower()
    return TIME_NAMES.index(name) if name in TIME_NAMES else None


class Layout(NamedTuple):
    """What the names of an entry or the columns of a table mean."""

    step: str | None
    """The best spelling of the step among them."""
    time: str | None
    """The best spelling of the time among them."""
    metrics: tuple[tuple[str, str], ...]
    """Every other name, with its canonical one; where two mean the same, the canonical spelling comes last and wins."""


@lru_cache(1024)
def layout_of(names: tuple[str, ...]) -> Layout:
    """Return what names mean; the entries of a recording have few sets of names, so this is done once for each."""
    steps = [(rank, index) for index, name in enumerate(names) if (rank := _step_rank(name)) is not None]
    times = [(rank, index) for index, name in enumerate(names) if (rank := _time_rank(name)) is not None]
    clock = names[min(times)[1]] if times else None
    metrics = [(name, canonical(name)) for name in names if name != clock and not is_step(name)]
    metrics.sort(key=lambda pair: pair[0] == pair[1])
    return Layout(names[min(steps)[1]] if steps else None, clock, tuple(metrics))


def metrics_of(entry: Mapping[str, object], layout: Layout) -> dict[str, float]:
    """Return everything numeric of an entry under canonical names."""
    values: dict[str, float] = {}
    for name, target in layout.metrics:
        value = number(entry[name])
        if value is not None:
            values[target] = value
    return values


def health_of(entry: Mapping[str, object]) -> dict[str, float]:
    """Return what an entry says of an RL or preference run beyond its steps; nothing for runs of other kinds.

    A guarded trainer hears of loss, gradient norm and rate at every step already, and more exactly than its log says.
    """
    values = metrics_of(entry, layout_of(tuple(entry)))
    if HEALTH_MARKS.isdisjoint(values):
        return {}
    return {name: value for name, value in values.items() if name not in OF_STEPS and not name.startswith("healing/")}


class RunCounter:
    """Tells several runs in one file apart.

    A new run begins where the step falls back to the beginning: to the step of the first training observation of
    the run so far, or below. A fall to a later step is a rollback or a resumed run, and stays the same run.
    """

    def __init__(self) -> None:
        self.run = 0
        self._first: int | None = None
        self._last: int | None = None

    def count(self, step: int, values: Mapping[str, float]) -> int:
        """Return the number of the run that an observation belongs to, from 0."""
        first, last = self._first, self._last
        if last is not None and step < last and (first is None or step <= first):
            self.run += 1
            self._first = None
        if self._first is None and "loss" in values:
            self._first = step
        self._last = step
        return self.run
