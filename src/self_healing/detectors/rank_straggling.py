"""The rule `rank-straggling`: one process of several is slower than the others, and all wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal

RATIO, SLOWEST = "slowest_rank_ratio", "slowest_rank"
_NOISE = tuple(1.0 + 0.9 * abs(((i * 7919) % 97) / 97) for i in range(200))


@dataclass(frozen=True, kw_only=True)
class RankStraggling(Detector):
    """One rank is much slower than all others, time after time.

    ## Why it matters
    Ranks wait for each other in every step, so that one slow one makes all of them as slow. A throttled or failing device, a
    neighbour on the same machine, a slow disk or an unequal share of the data costs the whole cluster that much.

    ## What to try
    1. Look at that rank's device (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,ECC`) and for others on its machine.
    2. See whether it waits for its data: where they lie, `dataloader_num_workers`, the length of its sequences.
    3. Leave its machine out (`--exclude` of Slurm) and start again.

    ## False alarms
    What each rank reports is the time of its own work, without waiting for others, as the median of the steps since the last vote. The
    same rank must be the slowest, by `slower`, in `votes` votes in a row: among equals that does not happen by chance. A rank
    that does more by design (it alone logs or decodes) is reported as well.

    ## References
    - Falcon, arXiv:2410.12588: stragglers of weeks that nobody had seen
    - NVIDIA resiliency extension: a rank below 0.75 of the others' speed is one
    """

    slower: float = 1.5
    """Times the median of the others' steps from which a rank is a straggler."""
    votes: int = 12
    """Votes in a row in which it must be the same rank."""

    failure = FailureType.OTHER
    fine = "throughput_drop"
    severity = Severity.WARNING
    metric = RATIO
    reads = (RATIO,)
    remedy = (
        rung(
            Alert(
                about="rank-straggling",
                advice="Look at that rank's device and machine (nvidia-smi -q -d PERFORMANCE), and whether it waits for data; "
                "leave the machine out if it stays.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires(
            "rank 3 takes twice as long", at_step=31, slowest_rank_ratio=[1.1] * 20 + [2.0] * 20,
            slowest_rank=[i % 8 for i in range(20)] + [3] * 20,
        ),
        quiet("another rank each time", slowest_rank_ratio=[2.0] * 100, slowest_rank=[i % 8 for i in range(100)]),
        quiet("rank 0 logs, and takes a little longer", slowest_rank_ratio=[1.3] * 100, slowest_rank=[0] * 100),
        quiet("two ranks and lengths at random", slowest_rank_ratio=_NOISE, slowest_rank=[i % 2 for i in range(200)]),
        quiet("eleven votes", slowest_rank_ratio=[2.0] * 11 + [1.1] * 9, slowest_rank=[1] * 20),
    )  # fmt: skip

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire where the same rank was far behind in all of the last votes."""
        ratio, rank = now.get(RATIO), now.get(SLOWEST)
        if ratio is None or rank is None:
            return None
        ratios, ranks = [*past.last(RATIO, self.votes - 1), ratio], [*past.last(SLOWEST, self.votes - 1), rank]
        if len(ratios) < self.votes or min(ratios) < self.slower or set(ranks) != {rank}:
            return None
        because = f"rank {rank:.0f} has taken {ratio:.2f} times as long as the others, and longest in {self.votes} votes in a row"
        return self.incident(now, because, excess=ratio - 1.0, slowest_rank=rank, ratio=ratio)
