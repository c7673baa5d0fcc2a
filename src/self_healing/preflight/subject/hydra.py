"""Hydra: the config that a script names, and the files that its list of defaults names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ..finding import Place
from .config import Config, read_config
from .script import Script
from .values import Kind, Reference

_ENDINGS = (".yaml", ".yml")


def config_of(script: Script) -> Config | None:
    """Return the config that `@hydra.main(config_path=..., config_name=...)` names; None where it is not there.

    Raises:
        InputError: it is there, and cannot be read.

    """
    for call in script.calls_of("main"):
        if call.name != "hydra.main":
            continue
        folder, name = call.given(0, "config_path"), call.given(1, "config_name")
        if (
            name is None
            or not isinstance(name.value, str)
            or (folder is not None and not isinstance(folder.value, str))
        ):
            continue
        below = str(folder.value) if folder is not None else "."
        file = name.value if name.value.endswith(_ENDINGS) else f"{name.value}.yaml"
        path = script.path.parent / below / file
        if path.is_file():
            return read_config(path, (PurePosixPath(script.named).parent / below / file).as_posix())
    return None


def chosen(config: Config, overrides: Mapping[str, object]) -> Iterator[tuple[str, Config | Reference]]:
    """Yield the parts that a list of defaults chooses, each with its group: a config, or a reference to a file that is missing.

    Groups may also be registered in code: a file is missed only where the folder of its group is there.

    Raises:
        InputError: a part is there, and cannot be read.

    """
    listed = config.content.get("defaults")
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, Mapping):
            continue
        for key, choice in entry.items():
            words = str(key).split()
            group = words[-1].partition("@")[0].strip("/")
            choice = overrides.get(group, choice)  # noqa: PLW2901  # the command goes before the list
            if "override" in words or "optional" in words or group.startswith("hydra") or not isinstance(choice, str):
                continue
            if not choice or "${" in choice or choice == "???":
                continue
            file = choice if choice.endswith(_ENDINGS) else f"{choice}.yaml"
            named = (PurePosixPath(config.named).parent / group / file).as_posix()
            path = config.path.parent / group / file
            if path.is_file():
                yield group, read_config(path, named)
            elif (config.path.parent / group).is_dir():
                where = Place(config.named, config.line_of("defaults"), f"defaults.{group}")
                yield group, Reference(kind=Kind.FILE, name=named, place=where)
