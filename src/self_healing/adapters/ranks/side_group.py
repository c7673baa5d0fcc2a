"""A group of all ranks apart from the training's own: small messages on the CPU, with a time limit.

Nothing of ours goes over the training's group. Its collectives are counted and ordered by the training alone, they may
be of a backend that needs a device, and after an exception on one rank nobody knows what is still under way in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

from ...core.errors import RanksParted

logger = logging.getLogger("self_healing.ranks")

PATIENCE_S = 1800.0
"""As long as a collective of gloo waits by default: one rank may evaluate or save while the others come to a vote.

A rank that is dead or stopped is named within seconds by the collective check, which ends the wait.
"""
CONNECT_S = 300.0
"""How long ranks wait for each other to begin, and for connections that a network may not let through."""
ROLL_CALL_S = 5.0
"""How long ranks that were let down wait for each other, to find out who has not come."""


class SideGroup:
    """A gloo group of our own, made by all ranks together."""

    def __init__(self, group: Any, *, rank: int, world_size: int) -> None:
        import torch

        self._group = group
        self.rank = rank
        self.world_size = world_size
        self.exchanges = 0
        """Gathers so far: the same on every rank."""
        self.is_broken = False
        """A gather has failed; every later one would."""
        self.silent_ranks: Callable[[], tuple[int, ...]] = _nobody
        """Says who is known not to answer: the collective check's knowledge."""
        self._said = torch.zeros(0, dtype=torch.int64)
        self._heard: list[Any] = []

    @property
    def process_group(self) -> Any:
        """The group itself, for what of torch takes one."""
        return self._group

    @staticmethod
    def is_possible() -> bool:
        """Say whether there are several processes that can talk: the same on all of them."""
        import torch.distributed as dist

        is_together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        return is_together and dist.is_gloo_available()

    @classmethod
    def join(cls, *, patience_s: float = PATIENCE_S, connect_s: float = CONNECT_S) -> Self | None:
        """Make the group, on all ranks at the same moment; None where there is only one process.

        Raises:
            RanksParted: they cannot reach each other in this way, though the training's own group may.

        """
        import torch.distributed as dist

        if not cls.is_possible():
            return None
        try:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=connect_s))
            side = cls(group, rank=dist.get_rank(), world_size=dist.get_world_size())
            side.exchange([side.rank])  # who has not got here will not come, and then nobody may count on the group
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=patience_s), group)  # noqa: SLF001  # has no public name
        except RuntimeError as error:
            first_line = str(error).strip().split("\n", 1)[0][:200]
            raise RanksParted(f"the ranks cannot reach each other over gloo: {first_line}") from error
        return side

    def exchange(self, numbers: Sequence[int], *, within_s: float | None = None) -> list[list[int]]:
        """Return what every rank has said, in their order; all say as many numbers. The time limit is the group's, or less.

        Raises:
            RanksParted: somebody has not come in time, or is gone.

        """
        import torch

        if len(numbers) != len(self._said):
            self._said = torch.zeros(len(numbers), dtype=torch.int64)
            self._heard = [torch.zeros_like(self._said) for _ in range(self.world_size)]
        self._said[:] = torch.tensor(numbers, dtype=torch.int64)
        self._gather(self._heard, self._said, within_s)
        return [each.tolist() for each in self._heard]

    def exchange_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order; they may be of any length.

        Raises:
            RanksParted: somebody has not come in time, or is gone.

        """
        import torch

        raw = text.encode()
        sizes = [each for (each,) in self.exchange([len(raw)])]
        longest = max(sizes)
        if not longest:
            return [""] * self.world_size
        said = torch.zeros(longest, dtype=torch.uint8)
        said[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else said[:0]
        heard = [torch.zeros_like(said) for _ in sizes]
        self._gather(heard, said)
        return [bytes(each[:size].tolist()).decode() for each, size in zip(heard, sizes, strict=True)]

    def close(self) -> None:
        """Let go of the group; where the training has ended all groups already there is nothing to do."""
        import torch.distributed as dist

        group, self._group = self._group, None
        if group is not None and not self.is_broken and dist.is_initialized():
            dist.destroy_process_group(group)

    def _gather(self, heard: list[Any], said: Any, within_s: float | None = None) -> None:
        import torch.distributed as dist

        if self.is_broken:
            raise RanksParted("the ranks have lost each other, and say nothing to each other any more")
        self.exchanges += 1
        try:
            if within_s is None:
                dist.all_gather(heard, said, group=self._group)
            else:
                dist.all_gather(heard, said, group=self._group, async_op=True).wait(timedelta(seconds=within_s))
        except RuntimeError as error:
            self.is_broken = True
            missing = self._missing()
            first_line = str(error).strip().split("\n", 1)[0][:200]
            who = f"rank {', '.join(map(str, missing))} did not come" if missing else "some rank did not come"
            raise RanksParted(f"{who} to exchange {self.exchanges}: {first_line}", ranks=missing) from error

    def _missing(self) -> tuple[int, ...]:
        """Return who did not come, as far as that can be known: by the check, else by a roll call in the store."""
        silent = self.silent_ranks()
        if silent:
            return silent
        came: set[int] = set()
        # In a thread: the store may lie in the process that has stopped.
        asking = threading.Thread(target=self._call_the_roll, args=(came,), name="self-healing-roll-call", daemon=True)
        asking.start()
        asking.join(ROLL_CALL_S + 1.0)
        if not came:  # the store does not answer
            return self.silent_ranks()
        return tuple(rank for rank in range(self.world_size) if rank not in came) or self.silent_ranks()

    def _call_the_roll(self, came: set[int]) -> None:
        """Say that this rank is here, and find out who else does."""
        import time

        from torch.distributed import distributed_c10d

        store, until = distributed_c10d._get_default_store(), time.monotonic() + ROLL_CALL_S  # noqa: SLF001  # no other way to it
        place = f"self_healing/exchange/{self.exchanges}"
        try:
            store.set(f"{place}/{self.rank}", "here")
            while len(came) < self.world_size and time.monotonic() < until:
                came |= {rank for rank in range(self.world_size) if store.check([f"{place}/{rank}"])}
                time.sleep(0.1)
        except RuntimeError as error:
            logger.debug("the roll could not be called: %s", error)


def _nobody() -> tuple[int, ...]:
    """Stand for a check that is not made."""
    return ()
