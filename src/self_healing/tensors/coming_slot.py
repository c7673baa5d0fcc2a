"""Memory for another snapshot, made ready while training goes on.

To take memory that others can find and to pin it takes half a second for a gigabyte, most of it without python's lock.
"""

from __future__ import annotations

import logging
import threading

from .arrivals import pinning
from .host_memory import Backing
from .reused_memory import HostSlot

logger = logging.getLogger("self_healing.snapshots")


class ComingSlot:
    """A slot whose memory is on its way."""

    def __init__(self, backing: Backing | None, nbytes: int) -> None:
        self._slot = HostSlot(backing)
        self._is_there = threading.Event()
        pinning.do(lambda: self._reserve(nbytes))

    def is_there(self) -> bool:
        """Say whether it can be had without a wait."""
        return self._is_there.is_set()

    def slot(self) -> HostSlot:
        """Return it, as soon as it is there."""
        self._is_there.wait()
        return self._slot

    def _reserve(self, nbytes: int) -> None:
        try:
            self._slot.reserve(nbytes, pinned=True)
        except (MemoryError, OSError, RuntimeError) as error:  # whoever uses the slot asks again, and can answer for it
            logger.warning("%d bytes of memory for a snapshot could not be had in advance: %s", nbytes, error)
        finally:
            self._is_there.set()
