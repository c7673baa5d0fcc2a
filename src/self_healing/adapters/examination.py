"""Find out why a step was not finite, by running it again under a probe that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.signal import Fact
from .trl_counters import Counters
from .window import MicroBatch, Window

MOST_PROBES = 3
"""Examinations per run: each costs a few passes over one micro-batch."""


class Examiner:
    """Examines unsound steps of one trainer, within a budget."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.left = MOST_PROBES

    def examine(self, window: Window, training_step: Any) -> dict[str, Fact]:
        """Return what was found as facts for the core; nothing where the budget is spent."""
        if self.left <= 0:
            return {}
        self.left -= 1
        found: dict[str, Fact] = {}
        for place, micro_batch in enumerate(window.micro_batches):
            found = self._probe(window, micro_batch, training_step)
            if found["nan_kind"] != "transient":
                found["nan_micro_batch"] = place
                return found
        return found

    def _probe(self, window: Window, micro_batch: MicroBatch, training_step: Any) -> dict[str, Fact]:
        from ..tensors.probe import probe

        trainer = self.trainer
        model = trainer.model_wrapped
        counters = Counters.of(trainer)
        prepared = micro_batch.again()
        batch = prepared if isinstance(prepared, Mapping) else micro_batch.inputs

        def run_step(part: Any) -> Any:
            return training_step(model, dict(part) if isinstance(part, Mapping) else part, window.num_items)

        config = getattr(trainer.model, "config", None)
        found = probe(
            model, run_step, batch, micro_batch.random_state, vocabulary_size=getattr(config, "vocab_size", None)
        )
        counters.restore(trainer)
        facts: dict[str, Fact] = {"nan_kind": found.kind, "nan_because": found.sentence()}
        if found.phase:
            facts["nan_phase"] = found.phase
        if found.module:
            facts["nan_module"] = found.module
        if found.rows:
            facts["nan_rows"] = ",".join(str(row) for row in found.rows)
        for oddity in found.oddities[:3]:
            facts[f"nan_odd_{oddity.name}"] = oddity.detail
        return facts
