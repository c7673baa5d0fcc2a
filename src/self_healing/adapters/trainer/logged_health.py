"""What a trainer logs of an RL or preference run, handed on to the rules: rewards, entropies, margins, lengths."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...core.signal import Fact, Facts, Metrics
from ...readers.names import health_of
from ..family import family_of
from ..run.run_desk import RunDesk
from ..wrapping import Wrapping
from .preference_pairs import pair_facts

DOUBT_THE_PAIRS = frozenset({"dpo-at-chance", "preference-accuracy-stuck"})
"""Rules whose firing is a reason to read the pairs."""


def judgement_facts(trainer: Any) -> dict[str, Fact]:
    """Return how many desirable and undesirable examples a KTO trainer has, where its data can be counted."""
    data: Any = getattr(trainer, "train_dataset", None)
    names, column = getattr(data, "column_names", None) or (), family_of(trainer).judgement_column
    if not column or column not in names or not hasattr(data, "__len__"):
        return {}
    labels = data[column]
    desirable = sum(map(bool, labels))
    return {"desirable_records": desirable, "undesirable_records": len(labels) - desirable}


class LoggedHealth:
    """Reads every entry of the trainer's log; those of runs of other kinds carry nothing for it.

    TRL adds its metrics inside of `log`, so the entry is read after it has been written. It is looked at at the end of the
    next step: the trainer is in the middle of its own business here.
    """

    def __init__(self, trainer: Any, desk: RunDesk) -> None:
        self.trainer = trainer
        self.desk = desk
        self._pairs: dict[str, Fact] | None = None
        """What was found in the pairs, once somebody had a reason to look."""

    def attach(self, wrapping: Wrapping) -> None:
        """Come after everyone who adds to the log."""
        wrapping.wrap(self.trainer, "log", self._around_log)

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(*args: Any, **kwargs: Any) -> Any:
            state = self.trainer.state
            before = len(state.log_history)
            done = original(*args, **kwargs)
            self._look_at_pairs(int(state.global_step))
            for entry in state.log_history[before:]:
                values = health_of(entry)
                if values:
                    step = int(entry.get("step", state.global_step))
                    self.desk.waiting.append(Metrics(step=step, time_s=time.time(), values=values))
            return done

        return log

    def _look_at_pairs(self, step: int) -> None:
        """Read the pairs where a rule doubts them; a return to an earlier state forgets what was found."""
        healer = self.desk.healer
        if "pairs_alike" in healer.history.facts or not any(
            case.incident.name in DOUBT_THE_PAIRS for case in healer.care.cases
        ):
            return
        if self._pairs is None:
            self._pairs = pair_facts(self.trainer)
        if self._pairs:
            self.desk.waiting.append(Facts(step=step, time_s=time.time(), facts=self._pairs))
