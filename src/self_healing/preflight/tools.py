"""What checks may ask beyond the subject: the Hub, the machine. Nothing is asked before a check does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .hub.hub import LIMIT_S, Hub
from .options import CheckOptions
from .surroundings.machine import Machine


@dataclass(frozen=True)
class Tools:
    """Handed to every check."""

    options: CheckOptions = field(default_factory=CheckOptions)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=Path.cwd)
    machine: Machine = field(default_factory=Machine)
    hub_limit_s: float = LIMIT_S
    """How long the Hub is waited for."""
    hub: Hub = field(init=False, repr=False, compare=False)
    """One for all checks, so that each question is asked once."""

    def __post_init__(self) -> None:
        """Make what is shared; none of it does anything before it is asked."""
        hub = Hub(self.environ, offline=self.options.offline, limit_s=self.hub_limit_s)
        object.__setattr__(self, "hub", hub)
