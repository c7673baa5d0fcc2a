"""Which ranks run on this machine, and what the system says of their processes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ...supervisor.watch.stacks import save_stacks

Card = dict[str, Any]


def own_card() -> Card:
    """Return by what other ranks know this process: a number of a process means something within one namespace only."""
    space = ""
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return {"host": platform.node(), "space": space, "pid": os.getpid(), "born_s": psutil.Process().create_time()}


class Neighbours:
    """The processes of other ranks on this machine."""

    def __init__(self, cards: Sequence[Mapping[str, Any]], rank: int) -> None:
        here = cards[rank]
        self._pids = {
            number: (int(card["pid"]), float(card["born_s"]))
            for number, card in enumerate(cards)
            if number != rank and (card["host"], card["space"]) == (here["host"], here["space"])
        }
        self._rank = rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks whose processes can be looked at from here."""
        return tuple(self._pids)

    def state_of(self, rank: int) -> str:
        """Return `gone`, `stopped` or `traced`, or nothing where the process runs or cannot be seen from here."""
        if rank not in self._pids:
            return ""
        pid, born_s = self._pids[rank]
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - born_s) > 2.0:  # the number was given to another one
                return "gone"
            status = process.status()
        except psutil.NoSuchProcess:
            return "gone"
        except psutil.Error:
            return ""
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "gone"
        return {psutil.STATUS_STOPPED: "stopped", psutil.STATUS_TRACING_STOP: "traced"}.get(status, "")

    def save_stacks_of(self, ranks: Sequence[int], folder: Path) -> str:
        """Write where processes stand that cannot say it themselves; one rank of each machine does it for all."""
        wanted = [rank for rank in ranks if rank in self._pids and self.state_of(rank) != "gone"]
        others = [rank for rank in self._pids if rank not in ranks and self.state_of(rank) == ""]
        if not wanted or any(rank < self._rank for rank in others):
            return ""
        name = "-".join(map(str, wanted[:8]))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return save_stacks([self._pids[rank][0] for rank in wanted], folder / f"stacks.absent-rank{name}.{stamp}.txt")
