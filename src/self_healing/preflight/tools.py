"""What checks may ask beyond the subject: the Hub, the machine. Nothing is asked before a check does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .machine import Machine
from .options import CheckOptions


@dataclass(frozen=True)
class Tools:
    """Handed to every check."""

    options: CheckOptions = field(default_factory=CheckOptions)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=Path.cwd)
    machine: Machine = field(default_factory=Machine)
