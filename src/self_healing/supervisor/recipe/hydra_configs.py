"""What Hydra will compose: the primary config and the group files that its defaults list and the overrides name.

Enough of Hydra's rules to find where a value stands. Only the primary config can be copied; a value of a group file is
changed by an override. A file that is not found is passed over: Hydra itself says so, or finds it elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .config_file import ConfigFile, read_config
from .setting import ByOverride, Entry, KeyPath, canonical

_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)")
_CHOICE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w/-]*(?:@[\w.-]*)?)(?:=([\w./-]+))?")
_DEEPEST = 20
_SELF = "_self_"


def composed_entries(primary: ConfigFile, root: Path, named_root: str, overrides: Sequence[str]) -> list[Entry]:
    """Return the values that Hydra will have before it applies overrides of values, each with where it is changed.

    Raises:
        ConfigError: a group file cannot be read.

    """
    choices = dict(_choices(root, overrides))
    while True:
        composition = _Composition(root, named_root, dict(choices))
        composition.add(primary, (), (), is_primary=True)
        for group, name in choices.items():
            if name is not None and group.startswith("+"):
                composition.add_group(group.lstrip("+"), name, (), ())
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
        for item in items if (_SELF, "") in items else [*items, (_SELF, "")]:
            if item[0] == _SELF:
                self._add_own(config, package, is_primary=is_primary)
            else:
                self._add_item(*item, group, package)
        self.depth -= 1

    def _add_own(self, config: ConfigFile, package: KeyPath, *, is_primary: bool) -> None:
        for entry in config.entries():
            if entry.path[0] == "defaults":
                continue
            key = ".".join((*package, entry.key))
            path = (*(canonical(part) for part in package), *entry.path)
            placed = replace(entry, key=key, path=path, place=entry.place if is_primary else ByOverride(key))
            self.entries.pop(path, None)
            self.entries[path] = placed

    def _add_item(self, key: str, name: str, group: KeyPath, package: KeyPath) -> None:
        words = key.split() or [""]
        target = words[-1]
        is_absolute = target.startswith("/")
        whole = target.lstrip("/") if is_absolute or not group else "/".join((*group, target)).rstrip("/")
        if "override" in words[:-1]:
            self.choices.setdefault(whole, name)
            return
        chosen = self.choices.get(whole, name)
        if chosen is not None:
            self.add_group(whole, chosen, () if is_absolute else group, () if is_absolute else package)

    def add_group(self, whole: str, name: str, group: KeyPath, package: KeyPath) -> None:
        """Add the file that a group's choice names, under the package that Hydra gives it."""
        folder, _, given = whole.partition("@")
        parts = tuple(part for part in (*folder.split("/"), *name.split("/")[:-1]) if part)
        path = self.root.joinpath(*parts, f"{name.rpartition('/')[2].removesuffix('.yaml')}.yaml")
        if not path.is_file():
            return
        named = Path(self.named_root, path.relative_to(self.root))
        config = read_config(path, str(named))
        header = _PACKAGE.match(config.text.removeprefix("\ufeff"))
        inner = (*package, *parts[len(group) :])
        if "@" in whole:
            inner = _package(given, parts, package)
        elif header is not None:
            inner = _package(header[1], parts, ())
        self.add(config, parts, inner)


def _package(text: str, group: KeyPath, parent: KeyPath) -> KeyPath:
    if text.startswith("_global_"):
        parent, text = (), text.removeprefix("_global_")
    elif text.startswith("_group_"):
        parent, text = group, text.removeprefix("_group_")
    elif text == "_here_":
        text = ""
    return (*parent, *(part for part in text.split(".") if part))


def _defaults(config: ConfigFile) -> Iterator[tuple[str, str]]:
    """Yield the items of a defaults list as (group, choice); a plain name has an empty group, `_self_` no choice."""
    for leaf in config.leaves:
        if leaf.path[:1] != ("defaults",) or not isinstance(leaf.value, str):
            continue
        if len(leaf.path) == 2:
            yield (_SELF, "") if leaf.value == _SELF else _plain(leaf.value)
        elif len(leaf.path) in (3, 4):  # the fourth is the place in a list of choices
            yield leaf.path[2], leaf.value


def _plain(name: str) -> tuple[str, str]:
    """Return a config that is named without a group, `base` or `db/mysql@other`, as a group and a choice."""
    path, at, package = name.partition("@")
    folder, slash, last = path.rpartition("/")
    return f"{folder}{slash if not folder else ''}{at}{package}", last
