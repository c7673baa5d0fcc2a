"""From what `heal run` was told to a recipe: the command that is started, and what in it can be changed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...core.errors import ConfigError
from ..settings import RunSettings
from .choosing import Found, chosen
from .command import check_command, command_entries, script_index
from .config_file import ConfigFile, read_config
from .hydra_configs import composed_entries
from .recipe import CONFIG, Recipe
from .setting import Entry

TRAIN_SCRIPT, CONFIG_PATH, CONFIG_NAME = "train.py", "configs", "config"
"""What is started where no command is given."""
LARGEST_SCRIPT = 4 << 20
_OWN_FLAG = re.compile(r"""["']--resume[_-]from[_-]checkpoint["']""")
_FIELDS_AS_FLAGS = re.compile(r"\b(?:HfArgumentParser|TrlParser)\b")
RESUME_FLAG = "--resume_from_checkpoint"


def read_recipe(settings: RunSettings, cwd: Path, environ: Mapping[str, str] | None = None) -> Recipe:
    """Read the command and its config, and find what may be changed in them; nothing is written.

    Raises:
        ConfigError: the script or the config is missing, unreadable or invalid, a key that was asked for is not there,
            or two keys could be meant.

    """
    environ = os.environ if environ is None else environ
    return _of_command(settings, cwd, environ) if settings.command else _of_hydra(settings, cwd, environ)


def _of_command(settings: RunSettings, cwd: Path, environ: Mapping[str, str]) -> Recipe:
    """Return the recipe of a command that was given behind `--`."""
    argv = settings.command
    for value, flag in (
        (settings.train_script, "--train-script"),
        (settings.config_path, "--config-path"),
        (settings.config_name, "--config-name"),
    ):
        if value is not None:
            raise ConfigError(
                f"{flag} {value}: is for Hydra's form without a command; leave it out, or leave the command "
                f"{argv[0]} out"
            )
    if settings.overrides:
        raise ConfigError(f"{settings.overrides[0]}: stands before the command; write it behind {argv[0]} ...")
    has_place = any(CONFIG in argument for argument in argv)
    config = None
    if settings.config is not None:
        if not has_place:
            raise ConfigError(
                f"--config {settings.config}: the command has no {CONFIG}; write {CONFIG} where the script takes "
                "the file, such as: -- python train.py --config {config}"
            )
        config = read_config(cwd / settings.config, str(settings.config))
    elif has_place:
        raise ConfigError(f"the command has {CONFIG}, but no config was given; give it with --config FILE")
    check_command(argv, cwd, environ)
    files = config.entries() if config else []
    looked_in = f"the command and {config.label}" if config else "the command"
    found = Found(command_entries(argv), files, environ, looked_in)
    recipe = _recipe(settings, argv, cwd, config, found)
    return replace(recipe, own_resume_flag=_own_resume_flag(argv, cwd))


def _of_hydra(settings: RunSettings, cwd: Path, environ: Mapping[str, str]) -> Recipe:
    """Return the recipe of Hydra's form: a script, a folder of configs, the name of one, and overrides."""
    if settings.config is not None:
        raise ConfigError(
            f"--config {settings.config}: needs a command that takes it; write one behind --, such as: "
            "-- python train.py --config {config}"
        )
    script = settings.train_script or TRAIN_SCRIPT
    if not (cwd / script).is_file():
        raise ConfigError(
            f"{script}: there is no such script; name it with --train-script, or write a command behind --"
        )
    root, config, name = _hydra_config(settings, cwd, script)
    argv = (sys.executable, script, "--config-path", str(root), "--config-name", name, *settings.overrides)
    first = len(argv) - len(settings.overrides)
    command = command_entries(argv, first)[2:]  # without the two flags of ours
    files: list[Entry] = composed_entries(config, root, name, settings.overrides)
    found = Found(command, files, environ, f"the overrides and {config.label}")
    return replace(_recipe(settings, argv, cwd, config, found), name_index=first - 1)


def _recipe(settings: RunSettings, argv: tuple[str, ...], cwd: Path, config: ConfigFile | None, found: Found) -> Recipe:
    """Return what both forms have in common."""
    return Recipe(
        argv=argv,
        cwd=cwd,
        config=config,
        found=tuple(chosen(found, settings)),
        entries=(*found.command, *found.files),
        looked_in=found.looked_in,
        resume_arg=settings.resume_arg,
    )


def _hydra_config(settings: RunSettings, cwd: Path, script: str) -> tuple[Path, ConfigFile, str]:
    """Return the folder of configs, the primary one and its name.

    A folder is seen from where `heal` was started, or, as Hydra has it, from the script's folder; Hydra is told which.
    """
    given = settings.config_path or CONFIG_PATH
    name = (settings.config_name or CONFIG_NAME).removesuffix(".yaml")
    tried = [(cwd / given, Path(given)), ((cwd / script).parent / given, Path(script).parent / given)]
    if not any(each.is_dir() for each, _ in tried):
        raise ConfigError(f"{given}: there is no such folder; name the folder of configs with --config-path")
    there = [each for each in tried if (each[0] / f"{name}.yaml").exists()]
    folder, named = (there or tried)[0]
    if not there and (folder / f"{name}.yml").exists():
        raise ConfigError(f"{named / name}.yml: Hydra reads only files that end with .yaml; rename it")
    config = read_config(folder / f"{name}.yaml", str(named / f"{name}.yaml"))
    return Path(os.path.abspath(folder)), config, name  # noqa: PTH100  # links stay as they are


def _own_resume_flag(argv: tuple[str, ...], cwd: Path) -> str | None:
    """Return `--resume_from_checkpoint` where the script itself takes it, which its text says."""
    index = script_index(argv)
    script = argv[index]
    # Of scripts that read all arguments from one file, none takes a flag besides it.
    if not script.endswith(".py") or (len(argv) == index + 2 and CONFIG in argv[-1]):
        return None
    try:
        with (cwd / script).open("rb") as file:
            text = file.read(LARGEST_SCRIPT).decode("utf-8", "replace")
    except OSError:
        return None
    if match := _OWN_FLAG.search(text):
        return match[0][1:-1]
    return RESUME_FLAG if _FIELDS_AS_FLAGS.search(text) and "resume_from_checkpoint" in text else None
