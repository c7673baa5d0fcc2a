"""Recognise an exception after which this process can never use its device again.

A failed assertion in a kernel, an access to memory that is not its own, an error of the hardware: the device's context
is broken, every later call raises the same, and nothing inside the process mends it. A new process can go on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..exceptions import chain, is_known_to

if TYPE_CHECKING:
    from ...core.cause import Pattern

LOST = frozenset({"device_assert", "illegal_memory_access", "gpu_hardware"})
"""The classes of failure, as the catalogue calls them, that leave a dead context behind."""


@lru_cache(maxsize=1)
def _patterns() -> tuple[Pattern, ...]:
    from ...patterns import gpu_hardware

    return tuple(row for row in gpu_hardware.PATTERNS if row.fine in LOST)


def is_device_lost(error: BaseException) -> bool:
    """Say whether an exception, or one that it was raised from or during, means that the device is lost.

    Frameworks raise it as a RuntimeError; an exception of another kind that quotes such a text proves nothing.
    """
    return any(isinstance(link, RuntimeError) and is_known_to(_patterns(), link) for link in chain(error))


class DeadDevice:
    """All that can still be done to a run whose device is lost."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None

    def stop_run(self, reason: str) -> str:
        """End training, which it has by then."""
        self.stop_reason = reason
        return "training has ended: its device is lost"
