"""Where what a dry run saves goes instead, and comes from when it is read again."""

from __future__ import annotations

import os
from typing import Any

from .telling import orders

_MOVED: dict[str, str] = {}


def moved(folder: Any) -> str:
    """Return the place in the temporary folder that stands for one of the user's."""
    home: str = os.path.realpath(orders()["folder"])
    path: str = os.path.realpath(os.fspath(folder))
    if path == home or path.startswith(home + os.sep):
        return path
    _MOVED[path] = os.path.join(home, "elsewhere", path.lstrip(os.sep))
    return _MOVED[path]


def own_output() -> str:
    """Return the output folder of a dry run."""
    return os.path.join(orders()["folder"], "output")


def read_from(name: Any) -> Any:
    """Return where something is read from: what was saved before is where it was moved to."""
    is_path = isinstance(name, str | os.PathLike)
    return _MOVED.get(os.path.realpath(os.fspath(name)), name) if is_path and _MOVED else name
