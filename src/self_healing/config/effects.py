"""Which keys of a configuration were set to no purpose: the sentences behind the warning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..core.action import Action
from ..core.discover import discover_classes
from ..core.failure import Effect
from .rules import SHORT_NAMES
from .sources import KeyPath, label

if TYPE_CHECKING:
    from .keys import HealingConfig

PLANNING = ("max_effect", "max_recovery_attempts", "on_instability")
"""Keys that matter only where plans are made, besides those that actions read."""


def without_effect(
    config: HealingConfig, given: frozenset[KeyPath], running: frozenset[str], capabilities: frozenset[str] | None
) -> list[str]:
    """Return a sentence for every key that was set and changes nothing."""
    if config.mode == "off":
        reasons = {path: "mode is off" for path in given if path not in (("mode",), ("preset",))}
    else:
        keys = {path[0] for path in given if len(path) == 1}
        reasons = {(key,): reason for key, reason in _of_values(config) if key in keys}
        reasons |= {(key,): reason for key, reason in _of_actions(config, capabilities) if key in keys}
        reasons |= dict(_of_rules(given, running))
        both = sorted(set(config.select or ()) & set(config.ignore))
        if both:
            reasons["select",] = f"{', '.join(both)} is ignored as well, which wins"
    return [f"{label(path)} has no effect: {reason}" for path, reason in sorted(reasons.items())]


def _of_rules(given: Iterable[KeyPath], running: frozenset[str]) -> Iterable[tuple[KeyPath, str]]:
    for path in given:
        rules = [path[1]] if path[0] == "rules" else [rule for rule, _ in SHORT_NAMES.get(path[0], ())]
        if rules and not running.intersection(rules):
            yield path, f"{' and '.join(rules)} {'does' if len(rules) == 1 else 'do'} not run"


def _of_values(config: HealingConfig) -> Iterable[tuple[str, str]]:
    """Yield the keys that another key's value makes pointless."""
    if not config.zclip_enabled:
        yield "zclip_z_threshold", "zclip_enabled is false"
        yield "zclip_mode", "zclip_enabled is false"
    if config.nan_action in ("rollback", "raise"):
        yield "nan_patience", f"nan_action is {config.nan_action}, which does not wait"
    if config.nan_action != "skip":
        yield "max_consecutive_skips", f"nan_action is {config.nan_action}, so that no step is skipped"


def _of_actions(config: HealingConfig, capabilities: frozenset[str] | None) -> Iterable[tuple[str, str]]:
    """Yield the keys that only actions read which are never planned, above the ceiling, or not offered by the run."""
    readers: dict[str, list[type[Action]]] = {}
    for action in discover_classes("self_healing.actions", Action).values():
        for key in (*action.fills.values(), *((action.opt_in,) if action.opt_in else ())):
            readers.setdefault(key, []).append(action)
    if config.mode == "observe":
        yield from ((key, "mode is observe, so that no plans are made") for key in (*PLANNING, *readers))
        return
    ceiling = Effect[config.max_effect.upper()]
    for key, actions in readers.items():
        allowed = [action for action in actions if action.effect <= ceiling]
        if not allowed:
            yield key, f"max_effect is {config.max_effect}, which rules out {_names(a.name() for a in actions)}"
            continue
        needed = [action.capability() for action in allowed]
        if capabilities is not None and not any(name is None or name in capabilities for name in needed):
            yield key, f"this run does not offer {_names(name for name in needed if name)}"


def _names(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))
