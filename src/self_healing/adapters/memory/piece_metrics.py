"""One value per micro-batch in TRL's lists of metrics, also where the micro-batch was run in pieces.

A TRL trainer appends to its lists each time it computes a loss. The values of the pieces are folded into what the whole
micro-batch would have given: means weighted by what they are means of, the least of the least, the sum of the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..family import Family
from ..step.trl_counters import Counters, count_again


class PieceMetrics:
    """The metrics of one micro-batch while its pieces are run."""

    def __init__(self, trainer: Any, family: Family, mode: str = "train") -> None:
        self.trainer = trainer
        self.family = family
        self.mode = mode
        self._before = Counters.of(trainer, mode)
        self._pieces: list[tuple[dict[tuple[str, str], float], dict[str, float]]] = []

    def piece_done(self, inputs: Mapping[str, Any], rows: int) -> None:
        """Take what a finished piece appended, and what it counts for, out of the lists."""
        values = {}
        for key, added in self._before.added(self.trainer).items():
            attribute, metric = key
            if metric != "num_tokens":  # that one is a running total, not a list
                values[key] = float(added[-1])
                entries = getattr(self.trainer, attribute)[self.mode][metric]
                del entries[-len(added) :]
        if values:
            self._pieces.append((values, self.family.amounts(inputs, rows)))

    def fold(self) -> None:
        """Append one value per metric for the whole micro-batch."""
        by_attribute: dict[str, dict[str, float]] = {}
        for key in dict.fromkeys(key for values, _ in self._pieces for key in values):
            attribute, metric = key
            unit = self.family.unit(metric)
            told = [(values[key], amounts[unit]) for values, amounts in self._pieces if key in values]
            by_attribute.setdefault(attribute, {})[metric] = _fold(metric, told)
        folded: dict[tuple[str, str], list[Any]] = {}
        for attribute, metrics in by_attribute.items():
            self.family.complete(metrics)
            folded |= {(attribute, metric): [value] for metric, value in metrics.items()}
        count_again(self.trainer, folded, self.mode)


def _fold(key: str, told: list[tuple[float, float]]) -> float:
    name = key.rpartition("/")[2]
    if name.startswith("min_") or name.endswith("_min"):
        return min(value for value, _ in told)
    if name.startswith("max_") or name.endswith("_max"):
        return max(value for value, _ in told)
    total = sum(count for _, count in told)
    return sum(value * count for value, count in told) / total if total else told[-1][0]
