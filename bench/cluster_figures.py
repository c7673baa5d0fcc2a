"""What `bench/cluster.py` computes with: figures that others have published, what we have measured, and what is assumed.

Labels: [V] read in the source or a stored copy of it; [M] remembered, not read again; [D] computed from the former; [A] assumed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from cluster_model import DAY_S, Failure, Job, Keeps, best_interval_s

# -- published -----------------------------------------------------------------------------------------------------------

RSC_1 = 6.50e-3
"""Failures per node and day on Meta's first research cluster [V] (arXiv 2410.21680)."""
LLAMA_INTERRUPTIONS, LLAMA_DAYS, LLAMA_GPUS = 419, 54, 16_384
"""Unexpected interruptions, days and GPUs of the Llama 3 training [V] (arXiv 2407.21783)."""
LLAMA_3 = LLAMA_INTERRUPTIONS / LLAMA_DAYS / (LLAMA_GPUS / 8)
"""Failures per node and day that follow from that [D]: 3.79e-3."""
SOFTWARE_PER_DAY = 24 * (1 / 7.9 - RSC_1 * 128 / 24)
"""Failures a day that do not depend on the size of a job [D]: what is missing to the 7.9 h that 1,024 GPUs were seen to last [V]; Minder has about 2 [V]."""

LLAMA_CAUSES = {
    "node": 148 + 72 + 19 + 17 + 6 + 3 + 3 + 2 + 2 + 2 + 2 + 7 + 35 + 6,
    "process": 54 + 2,
    "announced": 32,
    "hang": 7,
}
"""The 419 by what they ask for [V]: GPU, HBM, SRAM, system processor, thermal, host parts, network card, switches and silent corruption need
another node; software and dependencies another process; host maintenance is announced; the watchdog of NCCL is a hang."""

# -- measured ------------------------------------------------------------------------------------------------------------


def measured(value: float, document: str, quote: str, what: str) -> Any:
    """Return a field with where its value stands; a test looks there for it."""
    return field(default=value, metadata={"document": document, "quote": quote, "what": what})


@dataclass(frozen=True)
class Measured:
    """What a recovery costs us, where it was measured: one machine, small models. What that leaves out is in `Assumed`."""

    restart_s: float = measured(
        7.2, "docs/measured.md", "after 6.0, 7.2 and 9.8 s (median 7.2 s)",
        "from SIGKILL of a rank to the first new step of all, torchrun, from shared memory",
    )  # fmt: skip
    disk_restart_s: float = measured(
        10.14, "docs/measured.md", "| | checkpoint, guarded | 0.05 | 6.60 | 0.63 | 1.55 | 1.27 | 10.14 |",
        "the same of one process, a Trainer under guard, from a checkpoint",
    )  # fmt: skip
    stock_restart_s: float = measured(
        7.98, "docs/measured.md", "| | checkpoint, stock Trainer | 0.05 | 6.11 | 0.68 | 0.64 | 0.59 | 7.98 |",
        "the same, a stock Trainer, from a checkpoint",
    )  # fmt: skip
    hang_s: float = measured(
        16.1, "docs/measured.md", "the other had left with code 76 after 16.1 s",
        "from SIGSTOP of a rank until all others have left, having named it",
    )  # fmt: skip
    again_steps: float = measured(
        10.0, "docs/measured.md", "| guarded, ten faults | 306.3 | 290.8 | 6400 | 6500 | 1 (SIGKILL) |",
        "steps trained again for a fault that is healed within the process: the most of five calls, 100 for ten faults",
    )  # fmt: skip
    memory_steps: float = measured(
        50.0, "docs/measured.md", "none are further apart than 50", "steps between two states in memory, at most",
    )  # fmt: skip
    overhead: float = measured(
        0.0014, "docs/measured.md", "| +28.8 +- 3.4 ms | 39.6 ms | 0.14 % |", "stall by states in memory at the default interval, 7B"
    )  # fmt: skip


@dataclass(frozen=True)
class Assumed:
    """What nobody has measured for us; each can be set on the command line."""

    person_s: float = field(
        default=1800.0, metadata={"help": "until a person has noticed, understood and started it again [A]"}
    )
    step_s: float = field(default=5.0, metadata={"help": "one step [A]"})
    ranks_per_s: float = field(
        default=300.0,
        metadata={"help": "ranks that come together in a second when a job starts [M]: a second per few hundred"},
    )
    save_s: float = field(
        default=30.0, metadata={"help": "how long training stops for a checkpoint on disk, for all but the peers [D]"}
    )
    retried: float = field(default=1 / 3, metadata={"help": "share of software failures that are over when the job is just started again [V]: chains of automatic retries on 63 nodes"})  # fmt: skip


MEASURED = Measured()
NCCL_S, WATCHED_S, REQUEUED_S = 600.0, 120.0, 300.0
"""NCCL's own timeout [V]; until a watched job is known to have failed, and until a scheduler has it stepping again [D]: what fits Llama 3."""


# -- who recovers how ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strategy:
    """How long each class of failure takes, and what is kept."""

    name: str
    failures: Callable[[int, Assumed], dict[str, list[Failure]]]
    """By class of failure; the shares of a class add up to 1."""
    is_guarded: bool = False
    save_s: float | None = None

    def job(self, gpus: int, assumed: Assumed, per_node_day: float, software_per_day: float) -> Job:
        """Return the job of a size that meets hardware and software failures, with checkpoints as often as is best for it."""
        hardware = gpus / 8 * per_node_day
        rates = {name: hardware * count / LLAMA_INTERRUPTIONS for name, count in LLAMA_CAUSES.items()}
        rates["software"] = software_per_day
        total = sum(rates.values())
        failures = tuple(
            Failure(each.share * rates[name] / total, each.down_s, each.keeps)
            for name, classes in self.failures(gpus, assumed).items()
            for each in classes
            if rates[name] > 0
        )
        mean_s, save_s = DAY_S / total, assumed.save_s if self.save_s is None else self.save_s
        to_disk = sum(each.share for each in failures if each.keeps is Keeps.DISK)
        return Job(
            mean_s,
            best_interval_s(save_s, mean_s / to_disk) if save_s else mean_s,
            save_s,
            failures,
            MEASURED.memory_steps * assumed.step_s if self.is_guarded else 0.0,
            MEASURED.overhead if self.is_guarded else 0.0,
        )


def _stock(down_s: float, assumed: Assumed, retried: float) -> dict[str, list[Failure]]:
    software = [Failure(retried, down_s), Failure(1 - retried, down_s + assumed.person_s)]
    usual = [Failure(1.0, down_s)]
    return {
        "node": usual, "process": usual, "announced": usual, "hang": [Failure(1.0, NCCL_S + down_s)], "software": software,
    }  # fmt: skip


def by_a_person(_: int, assumed: Assumed) -> dict[str, list[Failure]]:
    return _stock(assumed.person_s + REQUEUED_S, assumed, retried=1.0)


def by_a_scheduler(_: int, assumed: Assumed) -> dict[str, list[Failure]]:
    return _stock(WATCHED_S + REQUEUED_S, assumed, assumed.retried)


def in_a_loop(gpus: int, assumed: Assumed) -> dict[str, list[Failure]]:
    return _stock(MEASURED.stock_restart_s + gpus / assumed.ranks_per_s, assumed, assumed.retried)


def guarded(healed: float | None) -> Callable[[int, Assumed], dict[str, list[Failure]]]:
    """Return what a few ranks of a loop were seen to do, as if every rank of a large job did it."""

    def failures(gpus: int, assumed: Assumed) -> dict[str, list[Failure]]:
        together_s = gpus / assumed.ranks_per_s
        start_s, disk_start_s = MEASURED.restart_s + together_s, MEASURED.disk_restart_s + together_s
        share = assumed.retried if healed is None else healed
        return {
            # The states in the memory of a node are gone with it.
            "node": [Failure(1.0, disk_start_s)],
            "process": [Failure(1.0, start_s, Keeps.MEMORY)],
            # All ranks write one checkpoint before they leave.
            "announced": [Failure(1.0, assumed.save_s + disk_start_s, Keeps.ALL)],
            "hang": [Failure(1.0, MEASURED.hang_s + start_s, Keeps.MEMORY)],
            "software": [
                # What is lost are the steps that are trained again.
                Failure(share, MEASURED.again_steps * assumed.step_s, Keeps.ALL),
                Failure(max(0.0, assumed.retried - share), start_s, Keeps.MEMORY),
                Failure(1 - max(share, assumed.retried), assumed.person_s + start_s, Keeps.MEMORY),
            ],
        }

    return failures


def peer(down_s: float, keeps: Keeps) -> Callable[[int, Assumed], dict[str, list[Failure]]]:
    return lambda _gpus, _assumed: {name: [Failure(1.0, down_s, keeps)] for name in (*LLAMA_CAUSES, "software")}


PERSON = Strategy("stock, a person restarts", by_a_person)
SCHEDULER = Strategy("stock, a scheduler restarts", by_a_scheduler)
LOOP = Strategy("stock, a loop restarts in place", in_a_loop)
OURS = Strategy("ours", guarded(0.0), is_guarded=True)
OURS_RESTARTED = Strategy("ours, all software failures restarted", guarded(0.0), is_guarded=True)
OURS_A_THIRD = Strategy("ours, a third of them healed in place", guarded(None), is_guarded=True)
OURS_ALL = Strategy("ours, all of them healed in place", guarded(1.0), is_guarded=True)
BYTEROBUST = Strategy("ByteRobust, fitted [D]", peer(200.0, Keeps.DISK), save_s=5.0)
DEADPOOL = Strategy("DeadPool's hot swap [V], to 512 GPUs", peer(40.0, Keeps.ALL), save_s=0.0)

HARDWARE_ONLY = (PERSON, SCHEDULER, LOOP, OURS, BYTEROBUST, DEADPOOL)
WITH_SOFTWARE = (PERSON, SCHEDULER, LOOP, OURS_RESTARTED, OURS_A_THIRD, OURS_ALL)


def sources() -> list[tuple[str, float, str, str, str]]:
    """Return what was measured: name, value, what it is, the document, and the words there that hold it."""
    return [
        (
            each.name,
            getattr(MEASURED, each.name),
            each.metadata["what"],
            each.metadata["document"],
            each.metadata["quote"],
        )
        for each in fields(MEASURED)
    ]
