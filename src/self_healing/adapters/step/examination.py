"""Find out why a step was not finite, by running it again under a probe that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.signal import Fact
from ..family import family_of
from ..wrapping import Wrapping
from .trl_counters import Counters, step_counters
from .window import MicroBatch, Window

if TYPE_CHECKING:
    from ...tensors.probe import Attribution

MOST_PROBES = 3
"""Examinations per run: each costs a few passes over one micro-batch."""
CHOSEN, REJECTED = "chosen:", "rejected:"
"""Marks of fields taken apart."""


class Examiner:
    """Examines unsound steps of one trainer, within a budget.

    What the core knows of a run stays known until something else is said, so every finding also takes back what earlier
    ones said: a later step must not be explained by an earlier one's rows.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.left = MOST_PROBES
        self._said: set[str] = set()
        self._last_step = -1
        """The step that was unsound last."""

    def examine(self, window: Window, training_step: Any) -> dict[str, Fact]:
        """Return what was found as facts for the core; nothing where what it knows of the step before still holds."""
        is_next, self._last_step = window.step == self._last_step + 1, window.step
        if self.left <= 0 and is_next:
            return {}
        if self.left <= 0:
            text = f"it was not examined: {MOST_PROBES} steps of this run have been, and each costs several passes"
            return self._finding({"nan_kind": "unexamined", "nan_because": text})
        self.left -= 1
        found: dict[str, Fact] = {}
        for place, micro_batch in enumerate(window.micro_batches):
            found = _facts_of(self._probe(window, micro_batch, training_step))
            if found["nan_kind"] != "transient":
                found["nan_micro_batch"] = place
                break
        return self._finding(found)

    def was_transient(self) -> dict[str, Fact]:
        """Return the facts of a step that was finite when it was made up."""
        text = "it was finite when the same step was run again, with the same data and the same random numbers"
        return self._finding({"nan_kind": "transient", "nan_because": text})

    def _finding(self, found: dict[str, Fact]) -> dict[str, Fact]:
        taken_back: dict[str, Fact] = dict.fromkeys(sorted(self._said - found.keys()), "")
        self._said = set(found)
        return {**found, **taken_back}

    def _probe(self, window: Window, micro_batch: MicroBatch, training_step: Any) -> Attribution:
        from ...tensors.probe import probe

        trainer = self.trainer
        model = trainer.model_wrapped
        prepared = micro_batch.again()
        batch = prepared if isinstance(prepared, Mapping) else micro_batch.inputs
        in_pairs = family_of(trainer).is_paired(batch)

        def run_step(part: Any) -> Any:
            whole = _together(part) if in_pairs else part
            return training_step(model, dict(whole) if isinstance(whole, Mapping) else whole, window.num_items)

        config = getattr(trainer.model, "config", None)
        counters, as_it_is = Counters.of(trainer), Wrapping()
        steps = step_counters(trainer)
        if prepared is not None:  # preparing may mean to generate, and would begin from what is prepared already
            as_it_is.replace(trainer, "_prepare_inputs", lambda part: part)
        try:
            return probe(
                model, run_step, _apart(batch) if in_pairs else batch, micro_batch.random_state,
                vocabulary_size=getattr(config, "vocab_size", None),
            )  # fmt: skip
        finally:
            as_it_is.restore()
            counters.restore(trainer)
            vars(trainer).update(steps)


def _apart(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Give chosen and rejected rows fields of their own, so that one row is one pair."""
    from ...tensors.odd_rows import count_rows

    rows = count_rows(batch) or 0
    found: dict[str, Any] = {}
    for name, value in batch.items():
        if rows > 0 and rows % 2 == 0 and getattr(value, "shape", ())[:1] == (rows,):
            found[CHOSEN + name], found[REJECTED + name] = value[: rows // 2], value[rows // 2 :]
        else:
            found[name] = value
    return found


def _together(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `_apart`, whatever rows were taken out meanwhile."""
    import torch

    found: dict[str, Any] = {}
    for name, value in batch.items():
        plain = name.removeprefix(CHOSEN)
        if name.startswith(CHOSEN) and REJECTED + plain in batch:
            found[plain] = torch.cat((value, batch[REJECTED + plain]))
        elif not (name.startswith(REJECTED) and CHOSEN + name.removeprefix(REJECTED) in batch):
            found[name] = value
    return found


def _facts_of(found: Attribution) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"nan_kind": found.kind, "nan_because": found.sentence()}
    if found.phase:
        facts["nan_phase"] = found.phase
    if found.tensors:
        facts["nan_tensor"] = found.tensors[0]
    owner = found.tensors[0].rpartition(".")[0] if found.kind == "weights" and found.tensors else ""
    if module := found.module or owner:
        facts["nan_module"] = module
    if found.rows:
        facts["nan_rows"] = ",".join(str(row) for row in found.rows)
    for oddity in found.oddities[:3]:
        facts[f"nan_odd_{oddity.name}"] = oddity.detail
    return facts
