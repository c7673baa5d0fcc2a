"""The fault `host-memory`."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fault import Expected, Fault, once_before_forward

MUCH = 2**31


@dataclass(kw_only=True)
class HostMemory(Fault):
    """The host has no memory left in the middle of a step, once: the kernel refuses what is asked for."""

    is_transient = True
    expected = Expected(cause=("out-of-memory",), actions=("clear_cache",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Ask for more than this process may have, before a forward pass."""
        once_before_forward(trainer, self.at_step, lambda _model: ask_for_too_much())


def ask_for_too_much() -> None:
    """Have the kernel refuse memory to this process, for this once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MUCH // 2, hard))
    try:
        bytearray(MUCH)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
