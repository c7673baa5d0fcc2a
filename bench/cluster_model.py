"""The share of its time that a large training gets on in, while parts of it fail: as a formula, and by drawing failures.

A job runs for a while (exponential, mean `mttf_s`), then something fails: of one class or another, each with the time until steps are taken
again and with what is kept of the work. While it is down something may fail again, and the wait begins anew. Checkpoints on disk stop
training for `save_s` after every `interval_s` of work; states in memory are taken every `memory_interval_s`.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, replace
from enum import Enum

GPUS_PER_NODE = 8
DAY_S = 86_400.0


class Keeps(Enum):
    """Up to where work is kept when something fails."""

    DISK = "the last checkpoint on disk"
    MEMORY = "the last state in memory"
    ALL = "all of it: there was time to save"


@dataclass(frozen=True)
class Failure:
    """One class of failures."""

    share: float
    down_s: float
    """From the failure to the first new step: noticing it, whoever starts it again, start-up, loading."""
    keeps: Keeps = Keeps.DISK


@dataclass(frozen=True)
class Job:
    """A training as the model sees it."""

    mttf_s: float
    interval_s: float
    save_s: float
    failures: tuple[Failure, ...]
    memory_interval_s: float = 0.0
    overhead: float = 0.0
    """The share of running time that guarding costs."""

    def slower_to_fail(self, times: float) -> Job:
        return replace(self, mttf_s=self.mttf_s * times)


def mttf_s(gpus: int, per_node_day: float, software_per_day: float = 0.0) -> float:
    """The mean time to failure of a job: its nodes fail at a rate of their own, its software at one that does not depend on its size."""
    return DAY_S / (gpus / GPUS_PER_NODE * per_node_day + software_per_day)


def best_interval_s(save_s: float, mean_s: float) -> float:
    """Young's interval between checkpoints."""
    return math.sqrt(2 * save_s * mean_s)


# -- the formulas --------------------------------------------------------------------------------------------------------


def effective_time(job: Job) -> float:
    """Return the expected useful work per time; for one class that keeps what is on disk this is Daly's formula.

    The work of a stretch between two failures divided by its length with what follows (renewal and reward), exact for exponential failures.
    """
    mean, segment = job.mttf_s, job.interval_s + job.save_s
    ends = -math.expm1(-segment / mean)  # the chance of a failure within a segment
    on_disk = job.interval_s * (1 - ends) / ends
    useful = sum(each.share * (on_disk + _since_disk(job, each.keeps, ends)) for each in job.failures)
    again = sum(each.share * -math.expm1(-each.down_s / mean) for each in job.failures)
    down = mean * again / (1 - again)
    return (1 - job.overhead) * useful / (mean + down)


def _since_disk(job: Job, keeps: Keeps, ends: float) -> float:
    """Return the expected work since the last checkpoint on disk that is kept."""
    mean, interval, left = job.mttf_s, job.interval_s, 1 - ends
    if keeps is Keeps.ALL:
        return (mean * -math.expm1(-interval / mean) - interval * left) / ends
    if keeps is Keeps.DISK or job.memory_interval_s <= 0:
        return 0.0
    each = job.memory_interval_s
    count = math.floor(interval / each)
    ratio = math.exp(-each / mean)
    reached = ratio * -math.expm1(-count * each / mean) / -math.expm1(-each / mean)
    return each * (reached - count * left) / ends


def effective_time_to_first_order(mean_s: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Return what Meta's study of its research clusters computes with: losses add up, and nothing fails while it is down."""
    return (1 - (restart_s + interval_s / 2) / mean_s) / (1 + save_s / interval_s)


# -- drawn failures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A figure with its sampling error."""

    value: float
    error: float

    def agrees(self, expected: float) -> bool:
        """Say whether it may be the expected one: within four standard errors."""
        return abs(self.value - expected) <= 4 * self.error + 1e-9


def drawn_effective_time(job: Job, rng: random.Random, failures: int, shape: float = 1.0) -> Drawn:
    """Let a job run into so many failures, one event after the other; a shape below 1 lets them come in swarms (Weibull)."""
    scale = job.mttf_s / math.gamma(1 + 1 / shape)

    def gap() -> float:
        return scale * (-math.log(1 - rng.random())) ** (1 / shape)

    def failed() -> Failure:
        place = rng.random()
        for each in job.failures:
            place -= each.share
            if place < 0:
                return each
        return job.failures[-1]

    stretches = []
    for _ in range(failures):
        ran, failure = gap(), failed()
        took, down, next_failure = ran, failure.down_s, gap()
        while next_failure < down:
            took += next_failure
            down, next_failure = failed().down_s, gap()
        took += down
        stretches.append(((1 - job.overhead) * _kept(job, ran, failure.keeps), took))
    all_useful, all_took = (math.fsum(each) for each in zip(*stretches, strict=True))
    ratio = all_useful / all_took
    spread = math.fsum((useful - ratio * took) ** 2 for useful, took in stretches)
    return Drawn(ratio, math.sqrt(spread * failures / (failures - 1)) / all_took)


def _kept(job: Job, ran_s: float, keeps: Keeps) -> float:
    """Return what is kept of the work of a stretch."""
    saved, since = divmod(ran_s, job.interval_s + job.save_s)
    on_disk, since = saved * job.interval_s, min(since, job.interval_s)
    if keeps is Keeps.ALL:
        return on_disk + since
    if keeps is Keeps.MEMORY and job.memory_interval_s > 0:
        return on_disk + since // job.memory_interval_s * job.memory_interval_s
    return on_disk


def drawn_mttf_s(
    gpus: int, per_node_day: float, rng: random.Random, failures: int, software_per_day: float = 0.0
) -> Drawn:
    """Let every node fail by itself, and be replaced, until there were so many failures; return the mean time between two."""

    def next_of(rate: float) -> float:
        return -math.log(1 - rng.random()) * DAY_S / rate

    rates = [per_node_day] * (gpus // GPUS_PER_NODE) + ([software_per_day] if software_per_day else [])
    due = [(next_of(rate), place) for place, rate in enumerate(rates)]
    heapq.heapify(due)
    now = 0.0
    for _ in range(failures):
        now, place = due[0]
        heapq.heapreplace(due, (now + next_of(rates[place]), place))
    return Drawn(now / failures, now / failures / math.sqrt(failures))
