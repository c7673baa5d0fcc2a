"""The fault `disk-full`."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from ..fault import Expected, Fault

FULL = Path("/dev/full")
"""Takes nothing, as a disk without room does."""


@dataclass(kw_only=True)
class DiskFull(Fault):
    """The disk is full when the second checkpoint is written, and has room again for the third."""

    at_step: int = 39

    is_transient = True
    is_for_trainers = False
    needs: ClassVar[Mapping[str, Any]] = MappingProxyType({"save_every": 20})
    expected = Expected(cause=("save-failed",), actions=("alert",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Have what is saved at that step go to a device that is always full."""
        import torch

        usual = torch.save

        def save(thing: Any, *args: Any, **kwargs: Any) -> None:
            if int(trainer.state.global_step) != self.at_step + 1:
                usual(thing, *args, **kwargs)
                return
            full = os.open(FULL, os.O_WRONLY) if FULL.exists() else -1
            try:
                if full < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.write(full, bytes(4096))
            finally:
                if full >= 0:
                    os.close(full)

        torch.save = save  # type: ignore[assignment]  # the same arguments
