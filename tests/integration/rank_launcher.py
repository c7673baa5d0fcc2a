"""Starts ranks of `loop_ranks.py` as torchrun does, from a process that has torch loaded already.

All are ended as soon as one has failed, and all are started again, a number of times. What torchrun itself does is tried in
a few tests with the real one, which takes seconds to start.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import self_healing

ROOT = Path(self_healing.__file__).parent
ROOMS = ("actions", "causes", "detectors", "patterns", "snapshots", "tensors", "adapters.families")
"""Whose files are loaded when a run begins."""
PRELOADED = [
    "torch",
    "torch._dynamo",  # which FSDP2 and the optimizers load when they are first used: a third of a short run
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "self_healing.adapters.plain_torch",
    *(
        f"self_healing.{room}.{path.stem}"
        for room in ROOMS
        for path in (ROOT / room.replace(".", "/")).glob("[a-z]*.py")
    ),
    f"{__package__}.loop_ranks",
]
PATIENCE_S = 100.0


@dataclass
class Launch:
    """How it went."""

    codes: list[list[int | None]] = field(default_factory=list)
    """What each rank of each attempt has exited with; None where it had to be killed by us."""

    @property
    def restarts(self) -> int:
        return len(self.codes) - 1

    @property
    def is_done(self) -> bool:
        return bool(self.codes) and set(self.codes[-1]) == {0}


def _rank(rank: int, world: int, folder: str, attempt: int, jobs: list[list[str]], environ: dict[str, str]) -> None:  # noqa: PLR0917
    import torch
    import torch.distributed as dist

    from . import loop_ranks

    os.environ.update(environ)  # the server that this process was forked from may be of another test
    os.environ.update(TORCHELASTIC_RESTART_COUNT=str(attempt), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    with (Path(folder) / f"output-{attempt}-{rank}.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous-{attempt}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    for job in jobs:
        loop_ranks.train(loop_ranks.options(job))
    dist.barrier()
    dist.destroy_process_group()


def launch(
    folder: Path,
    *jobs: list[str],
    world: int = 2,
    restarts: int = 0,
    grace_s: float = 0.0,
    patience_s: float = PATIENCE_S,
) -> Launch:
    """Run jobs one after the other on some ranks; where one fails, all are started again with all jobs.

    The others are ended at once where one fails, or given some time to leave by themselves.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    folder.mkdir(parents=True, exist_ok=True)
    told = Launch()
    for attempt in range(restarts + 1):
        ranks = [
            context.Process(target=_rank, args=(rank, world, str(folder), attempt, list(jobs), dict(os.environ)))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        told.codes.append(_wait(ranks, grace_s, patience_s))
        if told.is_done:
            break
    return told


def _wait(ranks: list[multiprocessing.Process], grace_s: float, patience_s: float) -> list[int | None]:
    until, has_failed = time.monotonic() + patience_s, False
    while any(process.is_alive() for process in ranks) and time.monotonic() < until:
        if not has_failed and any(not process.is_alive() and process.exitcode for process in ranks):
            has_failed, until = True, time.monotonic() + grace_s
        time.sleep(0.02)
    had_to_be_ended = [process.is_alive() for process in ranks]
    for process in ranks:
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
    for process in ranks:
        process.join(10.0)
    return [None if ended else process.exitcode for ended, process in zip(had_to_be_ended, ranks, strict=True)]
