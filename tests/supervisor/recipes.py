"""What the tests of recipes share: a folder with a script, and commands read in it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

from self_healing.supervisor.recipe import Launch, Recipe, Role, read_recipe
from self_healing.supervisor.settings import RunSettings

SCRIPT = "train.py"


def recipe_of(
    folder: Path, *arguments: str, text: str = "", environ: dict[str, str] | None = None, **settings
) -> Recipe:
    """Return the recipe of `python train.py ARGUMENTS...`."""
    (folder / SCRIPT).write_text(text)
    command = (sys.executable, SCRIPT, *arguments)
    return read_recipe(RunSettings(command=command, **settings), folder, environ)


def with_config(folder: Path, name: str, content: str | bytes, *arguments: str, **settings) -> Recipe:
    """Return the recipe of `python train.py --config {config}` with a config of this content."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return recipe_of(folder, "--config", "{config}", *arguments, config=Path(name), **settings)


def behind(launch: Launch) -> list[str]:
    """Return the arguments behind the script."""
    return launch.argv[2:]


def value(recipe: Recipe, role: Role) -> float | str:
    (setting,) = recipe.settings(role)
    return setting.value


def copied(recipe: Recipe, folder: Path, attempt: int = 2) -> bytes:
    """Return the config that an attempt uses."""
    launch = recipe.prepared(attempt)
    assert launch.config is not None
    return (folder / launch.config).read_bytes()


@pytest.fixture
def open_folder():
    """A folder that others may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="recipe-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def without_rights():
    """Run as nobody where the tests run as root, who may write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(user)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
