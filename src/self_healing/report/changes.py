"""Which changes of the configuration are still in force at the end, and how users know each action by name."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Mapping

from ..core.action import Action
from ..core.discover import discover_classes, module_names
from ..core.errors import CatalogueError
from ..core.failure import Effect
from ..core.ledger import Entry
from .clean import Cleaner, number_of, step_of

logger = logging.getLogger("self_healing.report")

_CATALOGUE = "self_healing.actions"
_ONCE = frozenset({"skip-step", "skip-batches", "quarantine-records", "reset-moments", "average-neighbours"})
"""Recipe actions that change no setting: they happen once and are listed elsewhere."""
_LASTING = frozenset({"halve-batch-size", "enable-gradient-checkpointing", "exclude-node"})
"""Actions that keep the recipe, but leave the run configured in another way than it was asked for."""
_SCALE, _RAMP, _CLIP = "scale-learning-rate", "rewarm-learning-rate", "tighten-clipping"
_NAMES = {_SCALE: "learning_rate_scale", _RAMP: "learning_rate_ramp", _CLIP: "gradient_clipping"}


class Changes:
    """The changes one process has made and not taken back, by action.

    A rollback keeps them: it is meant to go on differently from there. A ramp of the learning rate ends by itself.
    """

    def __init__(self, actions: Mapping[str, type[Action]], clean: Cleaner) -> None:
        """Begin with none."""
        self._actions = actions
        self._clean = clean
        self._made: dict[str, dict[str, object]] = {}
        self._waits: tuple[dict[str, object], int] | None = None
        """A ramp that begins where the run is about to return to, and its length."""

    def take(self, entry: Entry, name: str, parameters: Mapping[str, object], said: str, *, is_recipe: bool) -> None:
        """Take in one action that was done; `is_recipe` tells of the plan, for actions that are not known here."""
        action = self._actions.get(name)
        changes_recipe = is_recipe if action is None else action.effect is Effect.RECIPE
        if name in _ONCE or not (changes_recipe or name in _LASTING):
            return
        before = self._made.pop(name, None)
        times = (step_of(before["times"]) or 0) if before else 0
        is_undo = bool(entry.body.get("is_undo"))
        change: dict[str, object] = {
            "change": _NAMES.get(name) or self._clean.line(spelled(name, parameters, self._actions)),
            "times": times - 1 if is_undo else times + 1,
            "step": entry.step,
            "said": said,
        }
        if name == _SCALE:
            scale = _number(before, "value", 1.0) * _number(parameters, "factor", 1.0)
            if math.isclose(scale, 1.0, rel_tol=1e-6):
                return
            change["value"] = float(f"{scale:.6g}")
        elif is_undo and (times <= 1 or name == _RAMP):  # there is one ramp: a second cut goes on from the first
            return
        if name == _RAMP:
            # A plan may roll back first and start the ramp from there.
            began = step_of(entry.body.get("step_after"))
            steps = step_of(parameters.get("ramp_steps")) or 0
            change["until_step"] = (entry.step if began is None else began) + steps
            self._waits = (change, steps) if entry.body.get("returns_to") else None
        self._made[name] = change

    def returned(self, to_step: int) -> None:
        """Take note of a return: what waited for it begins there."""
        if self._waits is not None:
            change, steps = self._waits
            change["until_step"], self._waits = to_step + steps, None

    def in_force(self, last_step: int) -> list[dict[str, object]]:
        """Return the changes that hold at a step, oldest first."""
        return [
            change
            for change in self._made.values()
            if "until_step" not in change or (step_of(change["until_step"]) or 0) > last_step
        ]


def spelled(name: str, parameters: Mapping[str, object], actions: Mapping[str, type[Action]]) -> str:
    """Return the name users of `postmortem.json` know an action by."""
    if name == _SCALE and _number(parameters, "factor", 0.5) >= 1:
        return "scale_learning_rate"  # the seed's name says that the rate went down, and here it did not
    action = actions.get(name)
    return (action.seed_name if action is not None else None) or name.replace("-", "_")


def known_actions() -> Mapping[str, type[Action]]:
    """Return every action by name; a broken plugin is named in a warning and must not cost the report."""
    try:
        return discover_classes(_CATALOGUE, Action)
    except CatalogueError as error:
        logger.warning("actions of plugins are left out of the report: %s", error)
    modules = [importlib.import_module(f"{_CATALOGUE}.{name}") for name in module_names(_CATALOGUE)]
    found = [thing for module in modules for thing in vars(module).values() if isinstance(thing, type)]
    return {cls.name(): cls for cls in found if issubclass(cls, Action) and cls is not Action}


def _number(values: Mapping[str, object] | None, key: str, otherwise: float) -> float:
    number = number_of((values or {}).get(key))
    return float(number) if number is not None and math.isfinite(number) and number > 0 else otherwise
