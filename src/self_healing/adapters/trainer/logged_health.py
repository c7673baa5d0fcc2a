"""What a trainer logs of an RL or preference run, handed on to the rules: rewards, entropies, margins, lengths."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...core.signal import Fact, Metrics
from ...readers.names import health_of
from .run_desk import RunDesk
from .wrapping import Wrapping


def judgement_facts(trainer: Any) -> dict[str, Fact]:
    """Return how many desirable and undesirable examples a KTO trainer has, where its data can be counted."""
    data: Any = getattr(trainer, "train_dataset", None)
    names = getattr(data, "column_names", None) or ()
    if "KTO" not in type(trainer).__name__ or "label" not in names or not hasattr(data, "__len__"):
        return {}
    labels = data["label"]
    desirable = sum(map(bool, labels))
    return {"desirable_records": desirable, "undesirable_records": len(labels) - desirable}


class LoggedHealth:
    """Reads every entry of the trainer's log; those of runs of other kinds carry nothing for it.

    TRL adds its metrics inside of `log`, so the entry is read after it has been written. It is looked at during the next
    backward pass, like what the steps themselves show.
    """

    def __init__(self, trainer: Any, desk: RunDesk) -> None:
        self.trainer = trainer
        self.desk = desk

    def attach(self, wrapping: Wrapping) -> None:
        """Come after everyone who adds to the log."""
        wrapping.wrap(self.trainer, "log", self._around_log)

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(*args: Any, **kwargs: Any) -> Any:
            state = self.trainer.state
            before = len(state.log_history)
            done = original(*args, **kwargs)
            for entry in state.log_history[before:]:
                values = health_of(entry)
                if values:
                    step = int(entry.get("step", state.global_step))
                    self.desk.meanwhile.add(Metrics(step=step, time_s=time.time(), values=values))
            return done

        return log
