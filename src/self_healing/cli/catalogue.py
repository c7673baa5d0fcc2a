"""The catalogue as plain data: what `heal rules` lists and `heal explain` explains."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING

from ..core.action import Action, Ladder
from ..core.cause import Cause, Pattern
from ..core.detector import Detector
from ..core.discover import discover_classes, discover_patterns
from ..core.naming import summary_of

if TYPE_CHECKING:
    from ..preflight.check import Check

NOT_OFFERED = "no adapter offers this yet"


def rules() -> Mapping[str, type[Detector]]:
    """Return every rule by name."""
    return discover_classes("self_healing.detectors", Detector)


def causes() -> Mapping[str, type[Cause]]:
    """Return every cause by name."""
    return discover_classes("self_healing.causes", Cause)


def actions() -> Mapping[str, type[Action]]:
    """Return every action by name."""
    return discover_classes("self_healing.actions", Action)


def patterns() -> Mapping[str, Pattern]:
    """Return every pattern by name."""
    return {row.name: row for row in discover_patterns("self_healing.patterns")}


def checks() -> Mapping[str, type[Check]]:
    """Return every check of `heal check` by name."""
    from ..preflight.runner import known_checks

    return known_checks()


def offered(action: type[Action]) -> bool:
    """Say whether any adapter's run can do what an action asks, or does it at once by itself."""
    from ..adapters.run.abilities import TrainerAbilities
    from ..adapters.run.reflexes import AT_ONCE

    return action.needs is None or action.name() in AT_ONCE or issubclass(TrainerAbilities, action.needs)


def options_of(thing: type[Detector | Action]) -> dict[str, object]:
    """Return the options of a rule or the parameters of an action, with their defaults."""
    return {item.name: item.default for item in fields(thing) if item.name != "given"}


def rung_names(ladder: Ladder) -> list[str]:
    """Return the rungs of a ladder by name."""
    return [rung.name for rung in ladder]


def doc_of(thing: type) -> str:
    """Return a class's docstring as Markdown, without its indentation."""
    return inspect.cleandoc(thing.__doc__ or "")


def field_docs(thing: type) -> dict[str, str]:
    """Return the docstring under each field of a class and of its bases, read from the source."""
    docs: dict[str, str] = {}
    for cls in reversed(thing.__mro__):
        docs |= _own_field_docs(cls)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # built in, or a plugin without source
        return {}
    body = next((node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)), [])
    docs = {}
    for node, after in pairwise(body):
        match node, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs


def rule_entry(rule: type[Detector]) -> dict[str, object]:
    """Return a rule as `heal rules --json` lists it."""
    return {
        "name": rule.name(),
        "failure": rule.failure.value,
        "class": rule.fine,
        "severity": str(rule.severity),
        "summary": rule.summary(),
        "options": options_of(rule),
    }


def action_entry(action: type[Action]) -> dict[str, object]:
    """Return an action as `heal rules --json` lists it."""
    return {
        "name": action.name(),
        "effect": str(action.effect),
        "needs": action.capability(),
        "offered": offered(action),
        "summary": action.summary(),
        "options": options_of(action),
    }


def pattern_entry(pattern: Pattern) -> dict[str, object]:
    """Return a pattern as `heal rules --json` lists it."""
    return {
        "name": pattern.name,
        "failure": pattern.failure.value,
        "class": pattern.fine,
        "summary": pattern.says,
        "remedy": rung_names(pattern.remedy),
    }


def cause_entry(cause: type[Cause]) -> dict[str, object]:
    """Return a cause as `heal rules --json` lists it."""
    return {
        "name": cause.name(),
        "summary": cause.summary(),
        "explains": list(cause.explains),
        "remedy": rung_names(cause.remedy),
    }


def check_entry(check: type[Check]) -> dict[str, object]:
    """Return a check as `heal rules --json` lists it."""
    return {"name": check.name(), "asks_the_hub": check.asks_the_hub, "summary": summary_of(check)}
