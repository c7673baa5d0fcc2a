"""Faults planted into the run of a user's own script: asked for by `heal drill -- COMMAND`, through the environment.

Looked at only where `SELF_HEALING_DRILL` is set, when a guarded run begins. What it holds must fit a file that `heal drill`
has made for this drill and removes at its end, and the run must lie in the drill's folder: a variable that was left in an
environment, or copied into a job, ends the run before it has written anything.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.discover import discover_classes
from ..core.errors import ConfigError
from ..core.run_directory import DRILL, VARIABLE
from .fault import Fault

_TOKEN = "token"  # noqa: S105  # the name of a file


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The right to plant faults into runs below a folder, while a drill lasts."""

    folder: Path
    token: str

    @classmethod
    def issue(cls, folder: Path) -> Permit:
        """Make a new one."""
        token = secrets.token_hex(16)
        descriptor = os.open(folder / _TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        return cls(folder=folder, token=token)

    def variables(self, run_dir: Path, fault: str | None, at_step: int) -> dict[str, str]:
        """Return the environment of a run with a fault, or without one."""
        asked = {"folder": str(self.folder), "token": self.token, "fault": fault, "at_step": at_step}
        return {VARIABLE: str(run_dir), DRILL: json.dumps(asked)}

    def withdraw(self) -> None:
        """Let it be worth nothing from now on."""
        (self.folder / _TOKEN).unlink(missing_ok=True)


def plant_as_asked(trainer: Any, environ: Mapping[str, str]) -> None:
    """Plant the fault that a drill asks for, where it is a drill.

    Raises:
        ConfigError: it is none, or the run is not in the drill's folder.

    """
    try:
        asked = json.loads(environ[DRILL])
        folder, token, name, step = Path(asked["folder"]), str(asked["token"]), asked["fault"], int(asked["at_step"])
        issued = (folder / _TOKEN).read_text(encoding="utf-8")
    except (ValueError, TypeError, KeyError, OSError):
        issued, folder, token, name, step = "", Path(), "", None, 0
    if not issued or not hmac.compare_digest(issued.encode(), token.encode()):
        raise ConfigError(
            f"{DRILL} is set, but not by a drill that is under way: faults are planted by `heal drill -- COMMAND` only; unset it"
        )
    place = Path(trainer.args.output_dir).absolute()
    if not place.is_relative_to(folder):
        raise ConfigError(
            f"this is a drill, and the run would be written to {place}: have the script take its folder from {VARIABLE}, "
            f'such as run_dir=os.environ.get("{VARIABLE}", "out")'
        )
    if name is not None:
        discover_classes("self_healing.drills.faults", Fault)[name](at_step=step).plant(trainer)
