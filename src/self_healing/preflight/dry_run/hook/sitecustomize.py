"""Put on the path of a command that is tried out: limits it to a few steps, see `self_healing_dry_run`.

Python imports this file when it starts. Whatever else of the same name is on the path gets its turn after it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

import self_healing_dry_run  # type: ignore[import-not-found]  # it stands beside this file

_HERE = os.path.dirname(os.path.realpath(__file__))


def _others() -> None:
    paths = [path for path in sys.path if os.path.realpath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


self_healing_dry_run.begin()
_others()
