"""One value per micro-batch in TRL's lists of metrics, also where the micro-batch was run in pieces.

A TRL trainer appends to its lists each time it computes a loss. The values of the pieces are folded into what the whole
micro-batch would have given: means weighted by what they are means of, the least of the least, the sum of the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..trainer.trl_counters import Counters, count_again

TOKENS = frozenset({"entropy", "mean_token_accuracy"})


class PieceMetrics:
    """The metrics of one micro-batch while its pieces are run."""

    def __init__(self, trainer: Any, kind: str, mode: str = "train") -> None:
        self.trainer = trainer
        self.kind = kind
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
            self._pieces.append((values, _counts(self.kind, inputs, rows)))

    def fold(self) -> None:
        """Append one value per metric for the whole micro-batch."""
        folded: dict[tuple[str, str], float] = {}
        for key in dict.fromkeys(key for values, _ in self._pieces for key in values):
            counted = _counted(self.kind, key[1])
            told = [(values[key], counts[counted]) for values, counts in self._pieces if key in values]
            folded[key] = _fold(key[1], told)
        for attribute in dict.fromkeys(attribute for attribute, _ in folded) if self.kind == "KTOTrainer" else ():
            chosen, rejected = (folded.get((attribute, f"rewards/{side}")) for side in ("chosen", "rejected"))
            if chosen is not None and rejected is not None:
                # A piece with answers of one sort only has no margin; the micro-batch has.
                folded[attribute, "rewards/margins"] = chosen - rejected
        count_again(self.trainer, {key: [value] for key, value in folded.items()}, self.mode)


def _fold(key: str, told: list[tuple[float, float]]) -> float:
    name = key.rpartition("/")[2]
    if name.startswith("min_") or name.endswith("_min"):
        return min(value for value, _ in told)
    if name.startswith("max_") or name.endswith("_max"):
        return max(value for value, _ in told)
    total = sum(count for _, count in told)
    return sum(value * count for value, count in told) / total if total else told[-1][0]


def _counted(kind: str, key: str) -> str:
    """Name what a metric is a mean over."""
    name, _, side = key.partition("/")
    sided = side in ("chosen", "rejected")
    if kind == "DPOTrainer" and (name == "mean_token_accuracy" or (name == "logits" and sided)):
        return f"{side or 'chosen'} tokens"
    if kind == "KTOTrainer" and sided:
        return f"{side} tokens" if name == "logits" else side
    if kind in ("GRPOTrainer", "RLOOTrainer") or name in TOKENS:
        return "tokens"
    return "rows"


def _counts(kind: str, inputs: Mapping[str, Any], rows: int) -> dict[str, float]:
    """Count what the metrics of a piece are means over."""
    counts = dict.fromkeys(("rows", "tokens", "chosen", "rejected", "chosen tokens", "rejected tokens"), float(rows))
    if "completion_mask" in inputs:
        mask = inputs["completion_mask"]
        per_row = (mask if "completion_ids" in inputs else mask[:, 1:]).sum(1)
    elif "labels" in inputs and inputs["labels"].ndim > 1:
        per_row = inputs["labels"][:, 1:].ne(-100).sum(1)
    else:
        return counts
    counts["tokens"] = float(per_row.sum())
    if kind == "DPOTrainer" and len(per_row) == 2 * rows:
        counts["chosen tokens"], counts["rejected tokens"] = float(per_row[:rows].sum()), float(per_row[rows:].sum())
    if kind == "KTOTrainer":
        is_chosen = inputs["label"].to(per_row.device).bool()
        counts["chosen"], counts["rejected"] = float(is_chosen.sum()), float((~is_chosen).sum())
        counts["chosen tokens"] = float(per_row[is_chosen].sum())
        counts["rejected tokens"] = float(per_row[~is_chosen].sum())
    return counts
