"""Find catalogue entries in a folder and in entry points, with loud errors.

A catalogue is a package in which every module holds exactly one public subclass of a base class (or, for
patterns, one tuple called PATTERNS). Nothing is registered by hand: adding the file adds the entry.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import os
import pkgutil
import sys
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from .cause import Pattern
from .errors import CatalogueError
from .naming import kebab_case

logger = logging.getLogger("self_healing.discover")
T = TypeVar("T")

PLUGINS_SWITCH = "SELF_HEALING_PLUGINS"


def module_names(package_name: str) -> tuple[str, ...]:
    """Return the names of a catalogue's modules without importing them, in alphabetical order."""
    package = importlib.import_module(package_name)
    return tuple(sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.name[0] != "_"))


def discover_classes(package_name: str, base: type[T]) -> Mapping[str, type[T]]:
    """Return the catalogue's classes by public name: its own modules first, then installed plugins."""
    return cast("Mapping[str, type[T]]", _classes(package_name, cast("Any", base), _where()))


@functools.cache
def _classes(package_name: str, base: type[Any], where: _Where) -> Mapping[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module_name in module_names(package_name):
        cls = _only_subclass(importlib.import_module(f"{package_name}.{module_name}"), base, module_name)
        found[kebab_case(cls.__name__)] = cls
    for origin, loaded in _plugins(package_name, where):
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            raise CatalogueError(f"plugin {origin}: {loaded!r} is not a subclass of {base.__name__}")
        name = kebab_case(loaded.__name__)
        if name in found:
            raise CatalogueError(f"plugin {origin}: the name {name!r} is taken by {found[name].__module__}")
        found[name] = loaded
    return MappingProxyType(found)


def discover_patterns(package_name: str) -> tuple[Pattern, ...]:
    """Return every pattern row of the catalogue's modules and of installed plugins, in a fixed order."""
    return _patterns(package_name, _where())


@functools.cache
def _patterns(package_name: str, where: _Where) -> tuple[Pattern, ...]:
    rows: list[Pattern] = []
    for module_name in module_names(package_name):
        module = importlib.import_module(f"{package_name}.{module_name}")
        rows.extend(_rows(getattr(module, "PATTERNS", None), module.__name__))
    for origin, loaded in _plugins(package_name, where):
        rows.extend(_rows(loaded, f"plugin {origin}"))
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CatalogueError(f"pattern names used twice in {package_name}: {', '.join(twice)}")
    return tuple(rows)


def _only_subclass(module: ModuleType, base: type[T], module_name: str) -> type[T]:
    public = [
        thing
        for name, thing in vars(module).items()
        if isinstance(thing, type)
        and issubclass(thing, base)
        and thing.__module__ == module.__name__
        and not name.startswith("_")
    ]
    if len(public) != 1:
        raise CatalogueError(
            f"{module.__name__}: expected exactly one public subclass of {base.__name__}, found {len(public)}"
        )
    expected = module_name.replace("_", "-")
    if kebab_case(public[0].__name__) != expected:
        raise CatalogueError(
            f"{module.__name__}: the class is called {public[0].__name__}; a file {module_name}.py "
            f"must hold the class whose name reads {expected!r}"
        )
    return public[0]


def _rows(rows: object, origin: str) -> tuple[Pattern, ...]:
    if not isinstance(rows, tuple) or not all(isinstance(row, Pattern) for row in rows):
        raise CatalogueError(f"{origin}: expected PATTERNS to be a tuple of Pattern rows, found {type(rows).__name__}")
    return rows


class _Where(NamedTuple):
    """Where catalogues are looked for: they are read once for each, since a file of every installed package is opened."""

    path: tuple[str, ...]
    has_plugins: bool


def _where() -> _Where:
    switch = os.environ.get(PLUGINS_SWITCH, "1").lower()
    return _Where(tuple(sys.path), switch not in ("0", "off", "false", "no"))


def _plugins(package_name: str, where: _Where) -> list[tuple[str, object]]:
    """Load the entry points of the group named like the package, unless plugins are switched off."""
    loaded: list[tuple[str, object]] = []
    points = importlib.metadata.entry_points(group=package_name) if where.has_plugins else ()
    for point in sorted(points, key=lambda p: (p.name, p.value)):
        try:
            loaded.append((f"{point.name} = {point.value}", point.load()))
        except (Exception, SystemExit) as error:  # a broken plugin must be named, not skipped
            raise CatalogueError(
                f"plugin {point.name} = {point.value} (group {package_name}) cannot be loaded: {error!r}; "
                f"uninstall it or set {PLUGINS_SWITCH}=0"
            ) from error
    return loaded
