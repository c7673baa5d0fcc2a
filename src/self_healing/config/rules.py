"""The rules' options in a configuration: short names, checks against each rule's own fields, and the built rules."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..core.errors import CatalogueError
from .sources import Found, Given, KeyPath, at, explain, label, problem, suggestion

if TYPE_CHECKING:
    from ..core.detector import Detector

Catalogue = Mapping[str, "type[Detector]"]

SHORT_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "nan_patience": (("loss-not-finite", "patience"), ("gradient-not-finite", "patience")),
    "max_consecutive_skips": (("loss-not-finite", "stop_after"), ("gradient-not-finite", "stop_after")),
    "nan_action": (("loss-not-finite", "action"), ("gradient-not-finite", "action")),
    "loss_spike_factor": (("loss-spike", "factor"),),
    "divergence_patience": (("loss-divergence", "rising"),),
    "grad_norm_threshold": (("gradient-explosion", "threshold"),),
    "overfit_gap": (("eval-gap-growing", "gap"),),
}
"""The flat fields that are short names of rules' options: field to (rule, option)."""

_SHORT_OF: dict[KeyPath, str] = {
    ("rules", *target): field for field, targets in SHORT_NAMES.items() for target in targets
}
HUGE = 1e15
"""No option of a rule may be larger than this: such a number is a slip of the keyboard."""


class Option(NamedTuple):
    """A value for one option of one rule, and the path under which the user wrote it."""

    given: Given
    path: KeyPath


Options = dict[str, dict[str, Option]]
"""What is set of the rules' options: rule to option to value."""


def discovered() -> Catalogue:
    """Return the rules of this package and of installed plugins, by name."""
    from ..core.detector import Detector  # noqa: PLC0415  # loaded only when rules are needed
    from ..core.discover import discover_classes  # noqa: PLC0415

    return discover_classes("self_healing.detectors", Detector)


# Short names


def given_twice(found: Found) -> list[str]:
    """Return a problem for every option that one source sets by its short name and by its own."""
    return [
        f"{at(found[path].source)}{_SHORT_OF[path]} and {label(path)} are the same option; give one of them"
        for path in found
        if (_SHORT_OF.get(path, ""),) in found
    ]


def overlay(below: Found, above: Found) -> Found:
    """Return two sources as one: what `above` sets replaces the same option below, under either of its names."""
    merged = dict(below)
    for path in above:
        for target in SHORT_NAMES.get(path[0], ()):
            merged.pop(("rules", *target), None)
        short = _SHORT_OF.get(path)
        if short is not None and (short,) in merged:
            rest = merged.pop((short,))
            merged |= {("rules", *target): rest for target in SHORT_NAMES[short]}
    return merged | above


def options_of(found: Found) -> Options:
    """Return the rules' options that are set, short names written out; an option's own name wins."""
    options: Options = {}
    for field, targets in SHORT_NAMES.items():
        if (field,) in found:
            for rule, option in targets:
                options.setdefault(rule, {})[option] = Option(found[(field,)], (field,))
    for path, given in found.items():
        if path[0] == "rules" and len(path) > 2:  # ("rules", rule, option)
            options.setdefault(path[1], {})[path[2]] = Option(given, path)
    return options


# Checks


def unknown_rules(names: Iterable[tuple[str, str]], catalogue: Catalogue) -> list[str]:
    """Return a problem for every (rule, where it was named) that is not in the catalogue."""
    return [
        f"{where}unknown rule {name!r}{suggestion(name, catalogue)}" for name, where in names if name not in catalogue
    ]


def checked(rule: type[Detector], options: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the options' values as the rule's fields want them, and what is wrong with them."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    hints = get_type_hints(rule, include_extras=True) if options else {}
    for name, (given, path) in options.items():
        if name not in rule.options():
            problems.append(_missing_option(rule, name, given, path))
            continue
        try:
            values[name] = _validated(hints[name], given.value)
        except ValidationError as error:
            problems.append(problem(path, given, explain(error.errors(include_url=False))))
        except ValueError as error:
            problems.append(problem(path, given, str(error)))
    if problems:
        return values, problems
    try:
        rule(**values)
    except (ValueError, TypeError) as error:
        return values, [_blame(rule, values, options, str(error))]
    return values, []


def build(rule: type[Detector], values: Mapping[str, Any], own: Collection[str]) -> Detector:
    """Return the rule with its options, knowing which of them a person has set."""
    return rule(**values, given=frozenset(own))


def _missing_option(rule: type[Detector], name: str, given: Given, path: KeyPath) -> str:
    if path[0] != "rules":
        raise CatalogueError(f"{path[0]} is a short name of the option {name!r}, which {rule.name()} does not have")
    return f"{at(given.source)}[rules.{rule.name()}] unknown key {name!r}{suggestion(name, rule.options())}"


def _validated(hint: Any, value: object) -> Any:
    container = get_origin(hint)
    # TOML and JSON only have lists, and in Python whoever means one writes what comes to hand.
    if isinstance(value, list | tuple | set | frozenset) and container in (tuple, frozenset, set, list):
        value = container(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and HUGE < abs(value) < math.inf:
        raise ValueError(f"must be at most {HUGE:g} in size")
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)


def _blame(rule: type[Detector], values: Mapping[str, Any], options: Mapping[str, Option], text: str) -> str:
    """Return a rule's own refusal with the key it is about: the one it names, or the one it refuses by itself."""
    said = re.match(r"(?:\[rules\.[\w-]+\]\s*)?(\w+) = ([^:]*): (.*)", text, re.DOTALL)
    about = said[1] if said else ""
    named = [name for name in values if name == about] or [name for name in values if re.search(rf"\b{name}\b", text)]
    guilty = next((name for name in named or values if _refused(rule, {name: values[name]})), named[0] if named else "")
    if not guilty:
        first = next(iter(options.values()), None)
        return f"{at(first.given.source) if first else ''}[rules.{rule.name()}]: {text}"
    if said:
        text = said[3] if about == guilty else f"{about} = {said[2]} {said[3]}"
    text = text.removeprefix(f"{guilty} ")
    if options[guilty].path[0] != "rules":  # answer in the words the user used
        for name in rule.options():
            text = re.sub(rf"\b{name}\b", _SHORT_OF.get(("rules", rule.name(), name), name), text)
    return problem(options[guilty].path, options[guilty].given, text)


def _refused(rule: type[Detector], values: Mapping[str, Any]) -> bool:
    try:
        rule(**values)
    except (ValueError, TypeError):
        return True
    return False
