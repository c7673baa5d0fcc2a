"""What Hydra will compose: the primary config and the group files that its defaults list and the overrides name.

Enough of Hydra's rules to find where a value stands. Only the primary config can be copied; a value of a group file is
changed by an override. A file that is not found is passed over: Hydra itself says so, or finds it elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from .config_file import ConfigFile, read_config
from .setting import ByOverride, Entry, InFile, KeyPath, Place, canonical

_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)")
_CHOICE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w/-]*(?:@[\w.-]*)?)(?:=([\w./-]+))?")
_DEEPEST = 20


class _Item(NamedTuple):
    """An item of a defaults list: a group, with words before it and a package behind, and what is chosen from it."""

    group: str
    name: str
    is_plain: bool = False
    """Whether it names a file and leaves nothing to choose."""


_ITSELF = _Item("", "_self_", is_plain=True)


def composed_entries(primary: ConfigFile, root: Path, name: str, overrides: Sequence[str]) -> list[Entry]:
    """Return the values that Hydra will have before it applies overrides of values, each with where it is changed.

    `root` is the folder of configs, `name` the primary config's name in it: `config`, or `exp/config`.

    Raises:
        ConfigError: a group file cannot be read.

    """
    choices = dict(_choices(root, overrides))
    group = tuple(name.split("/")[:-1])
    header = _header(primary)
    package = group if header is None else _package(header, group, ())
    while True:
        composition = _Composition(root, primary.named.removesuffix(f"{name}.yaml"), dict(choices))
        composition.add(primary, group, package, is_primary=True)
        for added, choice in choices.items():
            if choice is not None and added.startswith("+"):
                composition.add_group(added.lstrip("+"), choice, (), ())
        if composition.choices == choices:
            return list(composition.entries.values())
        choices = composition.choices  # an `override` inside a file has changed what is composed before it


def _choices(root: Path, overrides: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the groups that overrides choose (`model=gnn`), add (`+db=mysql`) or take out (`~db`)."""
    for text in overrides:
        match = _CHOICE.fullmatch(text)
        if match is None or not (root / match[2].partition("@")[0]).is_dir():
            continue
        if match[1] == "~":
            yield match[2], None
        elif match[3] is not None:
            yield f"{match[1][:1]}{match[2]}", match[3]


@dataclass
class _Composition:
    """One pass; what it meets later takes the place of what it met before."""

    root: Path
    named_root: str
    choices: dict[str, str | None]
    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    depth: int = 0

    def add(self, config: ConfigFile, group: KeyPath, package: KeyPath, *, is_primary: bool = False) -> None:
        """Add a config: what its defaults list names, and its own values where `_self_` stands, else last."""
        if self.depth > _DEEPEST:
            return
        self.depth += 1
        items = list(_defaults(config))
        for item in items if _ITSELF in items else [*items, _ITSELF]:
            if item == _ITSELF:
                self._add_own(config, package, is_primary=is_primary)
            else:
                self._add_item(item, group, package)
        self.depth -= 1

    def _add_own(self, config: ConfigFile, package: KeyPath, *, is_primary: bool) -> None:
        for entry in config.entries():
            if entry.path[0] == "defaults":
                continue
            key = ".".join((*package, entry.key))
            path = (*(canonical(part) for part in package), *entry.path)
            place: Place = ByOverride(key)
            if is_primary and isinstance(entry.place, InFile):
                place = InFile(entry.place.path, ".".join((*package, *entry.place.path)))
            self.entries.pop(path, None)
            self.entries[path] = replace(entry, key=key, path=path, place=place)

    def _add_item(self, item: _Item, group: KeyPath, package: KeyPath) -> None:
        words = item.group.split() or [""]
        is_absolute = words[-1].startswith("/")
        inside = () if is_absolute else group
        whole = "/".join((*inside, words[-1].lstrip("/"))).rstrip("/")
        if "override" in words[:-1]:
            self.choices.setdefault(whole, item.name)
            return
        chosen = item.name if item.is_plain else self.choices.get(whole, item.name)
        if chosen is not None:
            self.add_group(whole, chosen, inside, package)

    def add_group(self, whole: str, name: str, inside: KeyPath, package: KeyPath) -> None:
        """Add the file that a choice names, under the package that Hydra gives it: inside that of who names it."""
        folder, at, given = whole.partition("@")
        parts = tuple(part for part in (*folder.split("/"), *name.split("/")[:-1]) if part)
        path = self.root.joinpath(*parts, f"{name.rpartition('/')[2].removesuffix('.yaml')}.yaml")
        if not path.is_file():
            return
        config = read_config(path, str(Path(self.named_root, path.relative_to(self.root))))
        header = _header(config)
        inner = (*package, *parts[len(inside) :])
        if at:
            inner = _package(given, parts, package)
        elif header is not None:
            inner = _package(header, parts, ())
        self.add(config, parts, inner)


def _header(config: ConfigFile) -> str | None:
    """Return the package that a file asks for in its first comment."""
    match = _PACKAGE.match(config.text.removeprefix("\ufeff"))
    return match[1] if match else None


def _package(text: str, group: KeyPath, parent: KeyPath) -> KeyPath:
    if text.startswith("_global_"):
        parent, text = (), text.removeprefix("_global_")
    elif text.startswith("_group_"):
        parent, text = group, text.removeprefix("_group_")
    elif text == "_here_":
        text = ""
    return (*parent, *(part for part in text.split(".") if part))


def _defaults(config: ConfigFile) -> Iterator[_Item]:
    for leaf in config.leaves:
        if leaf.path[:1] != ("defaults",) or not isinstance(leaf.value, str):
            continue
        if len(leaf.path) == 2:
            yield _plain(leaf.value)
        elif len(leaf.path) in (3, 4):  # the fourth is the place in a list of choices
            yield _Item(leaf.path[2], leaf.value)


def _plain(text: str) -> _Item:
    """Return a config that is named without a choice: `_self_`, `base` or `db/mysql@other`."""
    path, at, package = text.partition("@")
    folder, _, name = path.rpartition("/")
    start = "/" if path.startswith("/") and not folder else ""
    return _Item(f"{start}{folder}{at}{package}", name, is_plain=True)
