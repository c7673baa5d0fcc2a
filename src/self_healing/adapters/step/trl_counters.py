"""What TRL trainers count while they compute a loss, so that a step that is run again is counted once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..family import names_in_all

Counted = dict[tuple[str, str], list[Any]]
"""Values that a trainer has added to its lists of metrics, by the trainer's attribute and the metric."""


@dataclass(slots=True)
class Counters:
    """Lengths of the trainer's lists of metrics, its token counts and what adapts to its losses, at one moment."""

    lengths: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens: float | None = None
    mode: str = "train"
    seen: int | None = None
    """Tokens in the trainer's state, to which trainers that generate add while they prepare their inputs."""
    moved: dict[str, Any] = field(default_factory=dict)
    """What computing a loss gives another value: a weight that adapts to the last steps."""

    @classmethod
    def of(cls, trainer: Any, mode: str = "train") -> Counters:
        """Note where the counting stands."""
        lengths: dict[tuple[str, str], int] = {}
        for attribute in names_in_all("metric_lists"):
            metrics = getattr(trainer, attribute, None)
            if isinstance(metrics, dict):
                lengths.update({(attribute, name): len(values) for name, values in metrics.get(mode, {}).items()})
        seen = getattr(getattr(trainer, "state", None), "num_input_tokens_seen", None)
        own = getattr(trainer, "__dict__", {})
        moved = {name: own[name] for name in names_in_all("moved_by_loss") if name in own}
        return cls(lengths, getattr(trainer, "_total_train_tokens", None), mode, seen, moved)

    def added(self, trainer: Any) -> Counted:
        """Return what was counted since."""
        return {
            key: added for key, values in _lists(trainer, self.mode) if (added := values[self.lengths.get(key, 0) :])
        }

    def restore(self, trainer: Any) -> None:
        """Forget what was counted since; a metric that is new since then is not there any more: TRL divides by how many there are."""
        for attribute, lists in metric_lists(trainer, self.mode):
            for metric in tuple(lists):
                if (attribute, metric) in self.lengths:
                    del lists[metric][self.lengths[attribute, metric] :]
                else:
                    del lists[metric]
        if self.tokens is not None:
            trainer._total_train_tokens = self.tokens  # noqa: SLF001  # TRL's own counter
        for name, value in self.moved.items():
            setattr(trainer, name, value)

    def restore_before_preparing(self, trainer: Any) -> None:
        """Do the same where the inputs will be prepared again, and be counted with that."""
        self.restore(trainer)
        if self.seen is not None:
            trainer.state.num_input_tokens_seen = self.seen


def step_counters(trainer: Any) -> dict[str, Any]:
    """Return what generation trainers count in each step, to decide when to generate again; for `vars(trainer).update`."""
    own = vars(trainer)
    return {name: own[name] for name in names_in_all("step_counts") if name in own}


@dataclass(frozen=True, slots=True)
class BeforeGenerating:
    """Where a trainer that generates its own data stood before a step, which may have generated."""

    counts: dict[str, Any]
    ahead: dict[str, int]
    """Which objects hold what was generated ahead; not the objects, which would lie in memory twice."""
    random_state: Any

    @classmethod
    def of(cls, trainer: Any) -> BeforeGenerating | None:
        """Take note of it; None for a trainer whose data come from its loader alone."""
        from ...tensors.random_state import RandomState

        own = vars(trainer)
        ahead = {name: id(own[name]) for name in names_in_all("generated") if name in own}
        return cls(step_counters(trainer), ahead, RandomState.capture()) if ahead else None

    def restore(self, trainer: Any) -> None:
        """Make it as though nothing had been generated since: what was is forgotten, and comes again with the same numbers."""
        own = vars(trainer)
        own.update(self.counts)
        own.update({name: None for name, was in self.ahead.items() if id(own[name]) != was})
        self.random_state.restore()


def generates_for_several_steps(trainer: Any) -> bool:
    """Say whether data are generated ahead for several optimizer steps, each of which has its own part of them.

    Which part a step gets follows from the trainer's count: other data cannot be put into the place of one.
    """
    if not any(hasattr(trainer, name) for name in names_in_all("generated")):
        return False
    iterations = getattr(trainer, "num_iterations", 1)
    return int(trainer.args.steps_per_generation) * int(iterations) > int(trainer.args.gradient_accumulation_steps)


def count_again(trainer: Any, counted: Counted, mode: str = "train") -> None:
    """Count once more what `Counters.added` has returned, after it was taken back."""
    for (attribute, metric), values in counted.items():
        getattr(trainer, attribute)[mode].setdefault(metric, []).extend(values)


def metric_lists(trainer: Any, mode: str) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield the trainer's own lists by metric, with the attribute that holds them; nothing for one that keeps none."""
    for attribute in names_in_all("metric_lists"):
        metrics = getattr(trainer, attribute, None)
        if isinstance(metrics, dict):
            yield attribute, metrics.get(mode, {})


def _lists(trainer: Any, mode: str) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    for attribute, lists in metric_lists(trainer, mode):
        for metric, values in lists.items():
            yield (attribute, metric), values
