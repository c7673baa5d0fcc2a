"""The config file of a command: read once, never written; copies of it get other values."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from .json_text import json_leaves
from .leaf import Leaf, Unreadable, spliced
from .setting import Entry, InFile, KeyPath, canonical
from .toml_text import toml_changed, toml_leaves
from .yaml_text import yaml_leaves

LARGEST_BYTES = 1 << 20
_READERS = {".yaml": yaml_leaves, ".yml": yaml_leaves, ".json": json_leaves, ".toml": toml_leaves}
_BOM = "\ufeff"


@dataclass(frozen=True)
class ConfigFile:
    """A config file as it was when it was read."""

    path: Path
    """Where it is; a link stays one, since a copy stands beside the link."""
    named: str
    """As the user named it; `label` is what texts say."""
    text: str
    """Its characters as they are, line ends included."""
    leaves: tuple[Leaf, ...]
    mode: int

    @property
    def label(self) -> str:
        """Its name on one line."""
        return _label(self.named)

    def entries(self) -> list[Entry]:
        """Return its values by their keys."""
        return [
            Entry(
                key=".".join(leaf.path),
                path=tuple(canonical(part) for part in leaf.path),
                value=leaf.value,
                where=self.label,
                place=InFile(leaf.target),
                line=leaf.line,
                problem=leaf.problem,
                fatal=f"stands there twice (lines {leaf.twice} and {leaf.line}); keep one" if leaf.twice else "",
            )
            for leaf in self.leaves
            if leaf.path
        ]

    def changed(self, values: Mapping[KeyPath, float | str]) -> bytes:
        """Return what a copy with other values holds: nothing else differs by a character.

        Raises:
            ConfigError: the file is written in a way that cannot be changed.

        """
        mark = _BOM if self.text.startswith(_BOM) else ""
        text = self.text.removeprefix(_BOM)
        try:
            if self.path.suffix.lower() == ".toml":
                return (mark + toml_changed(text, values)).encode()
            return (mark + spliced(text, self.leaves, values)).encode()
        except Unreadable as error:
            raise ConfigError(f"{self.label}: {error.what}") from None


def read_config(path: Path, named: str) -> ConfigFile:
    """Return a config file that was read.

    Raises:
        ConfigError: there is none, it cannot be read, or it is not what its ending says.

    """
    label = _label(named)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"{label}: a config must end with .yaml, .yml, .toml or .json, which says how to read it")
    try:
        mode = path.stat().st_mode
        # A pipe would wait for a writer for ever, and could be read only once.
        raw = _read(path) if stat.S_ISREG(mode) else b""
    except FileNotFoundError:
        raise ConfigError(f"{label}: there is no such config file") from None
    except (OSError, ValueError) as error:  # a null byte in a name is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{label}: cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{label}: is a folder; name the config file in it")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{label}: is no regular file, and a copy with other values could not be made beside it")
    if len(raw) > LARGEST_BYTES:
        raise ConfigError(f"{label}: cannot be read: larger than {LARGEST_BYTES:,} bytes, so hardly a config")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{label}:{line}: is not UTF-8 text") from None
    try:
        leaves = tuple(read(text.removeprefix(_BOM)))
    except Unreadable as error:
        place = f"{label}:{error.line}" if error.line else label
        raise ConfigError(f"{place}: {error.what}") from None
    return ConfigFile(path, named, text, leaves, stat.S_IMODE(mode))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_BYTES + 1)


def _label(name: str) -> str:
    return " ".join(name.split())
