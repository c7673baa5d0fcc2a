"""Which distribution a module comes from, and what a list of dependencies brings along."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..subject import Import
from .distribution_facts import BRINGS, EXTRAS, LEAVES, MODULES, NAMESPACES


def is_standard(module: str) -> bool:
    """Say whether a module is part of Python."""
    return module.partition(".")[0] in sys.stdlib_module_names


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the distributions a module may come from, the one to propose first; empty where that is not known."""
    parts = module.split(".")
    for length in (2, 1):
        known = MODULES.get(".".join(parts[:length]))
        if known is not None:
            return known
    if parts[0] in NAMESPACES:
        return ()
    return (str(canonicalize_name(parts[0])),)


def modules_of(each: Import) -> str:
    """Return the module an import names, with what is taken from a namespace: `google.protobuf`."""
    return f"{each.module}.{each.name}" if each.name and "." not in each.module else each.module


@dataclass(frozen=True, slots=True)
class Brought:
    """What a list of dependencies comes to."""

    names: frozenset[str]
    unknown: tuple[str, ...]
    """Those of which nothing is known, so that they may bring anything."""

    def has(self, alternatives: Iterable[str]) -> bool:
        """Say whether one of several distributions is there, or one that is called nearly so (`foo-python` for `foo`)."""
        wanted = [str(canonicalize_name(name)) for name in alternatives]
        return any(name in self.names for name in wanted) or any(
            part in other.split("-") for part in wanted for other in self.unknown
        )


def brought_by(requirements: Iterable[Requirement]) -> Brought:
    """Return everything that is installed with a list of dependencies, as far as that is known."""
    names: set[str] = set()
    unknown: list[str] = []
    waiting = [(str(canonicalize_name(each.name)), frozenset(each.extras)) for each in requirements]
    while waiting:
        name, extras = waiting.pop()
        if name in names and not extras:
            continue
        names.add(name)
        follow, is_known = _follow(name, extras)
        if not is_known and name not in unknown:
            unknown.append(name)
        waiting += [(each, frozenset()) for each in follow if each not in names]
    return Brought(frozenset(names), tuple(unknown))


def _follow(name: str, extras: frozenset[str]) -> tuple[list[str], bool]:
    known = BRINGS.get(name, () if name in LEAVES else None)
    follow = list(known or ())
    is_known = known is not None
    if known is None and (metadata := installed_needs(name)) is not None:
        follow = [str(canonicalize_name(each.name)) for each in metadata]
        is_known = True
    for extra in extras:
        added = EXTRAS.get((name, str(canonicalize_name(extra))))
        is_known = is_known and added is not None
        follow += added or ()
    return follow, is_known


# -- what is installed here --------------------------------------------------------------------------


@functools.cache
def installed_version(name: str) -> Version | None:
    """Return the version of a distribution that is installed where this program runs."""
    try:
        return Version(importlib.metadata.version(name))
    except (importlib.metadata.PackageNotFoundError, InvalidVersion, TypeError):
        return None


@functools.cache
def installed_needs(name: str) -> tuple[Requirement, ...] | None:
    """Return what an installed distribution asks for here, without its extras; None where it is not installed."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    needs = []
    for text in texts:
        try:
            each = Requirement(text)
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                needs.append(each)
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue
    return tuple(needs)
