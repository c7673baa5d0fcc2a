"""`heal run --plan`: what was found in the command, and what would be done about what."""

from __future__ import annotations

from pathlib import Path

from .loop import run_directory
from .recipe import NoRoom, Recipe, read_recipe
from .settings import RunSettings


def planned(settings: RunSettings, cwd: Path) -> list[str]:
    """Return what would be started, changed and written, in lines; nothing is.

    Raises:
        ConfigError: something is wrong with what the user gave.

    """
    recipe = read_recipe(settings, cwd)
    lines = [f"run directory: {run_directory(settings, recipe, cwd)}", *recipe.describe()]
    wishes = {
        "after a NaN": recipe.with_less_rate(settings.lr_divisor, settings.min_lr),
        "out of memory on the device": recipe.with_less_batch(settings.batch_divisor, settings.min_batch_size),
        "out of memory on the host": recipe.with_fewer_workers(),
    }
    lines += [f"{when}: {_told(changed, recipe)}" for when, changed in wishes.items()]
    lines.append(
        f"at most {settings.max_retries} retries; a network error is waited for {settings.backoff:g} s, then twice as long each time"
    )
    return lines


def _told(changed: Recipe | NoRoom, before: Recipe) -> str:
    if isinstance(changed, NoRoom):
        return changed.reason
    return "; ".join(change.text() for change in changed.changes_since(before))
