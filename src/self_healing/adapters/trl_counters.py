"""What TRL trainers count while they compute a loss, so that a step that is run again is counted once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """Lengths of the trainer's lists of training metrics, and its token counts, at one moment."""

    lengths: dict[str, int] = field(default_factory=dict)
    tokens: float | None = None

    @classmethod
    def of(cls, trainer: Any) -> Counters:
        """Note where the counting stands."""
        metrics = getattr(trainer, "_metrics", None)
        lists = metrics.get("train", {}) if isinstance(metrics, dict) else {}
        lengths = {key: len(values) for key, values in lists.items()}
        return cls(lengths, getattr(trainer, "_total_train_tokens", None))

    def restore(self, trainer: Any) -> None:
        """Forget what was counted since."""
        metrics = getattr(trainer, "_metrics", None)
        if isinstance(metrics, dict):
            for key, values in metrics.get("train", {}).items():
                del values[self.lengths.get(key, 0) :]
        if self.tokens is not None:
            trainer._total_train_tokens = self.tokens  # noqa: SLF001  # TRL's own counter
