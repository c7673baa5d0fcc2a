"""What to do after an attempt: pure, from what it came to and what came before.

Something is changed before another attempt where the same would happen again (NaN, out of memory); what passes by itself
is tried again as it is; an error that a person has to mend ends the job at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .outcome import EndedBy, Outcome
from .settings import RunSettings

MOST_WAIT_S = 1800.0
MOST_DOUBLINGS = 60
"""Of a wait: what is longer is longer than any, and a number that has no end overflows."""
WITHOUT_PROGRESS = 3
"""Attempts with the same settings that come no further than one before: another one would not either."""


DECIDES_BY = ("max_retries", "backoff")
"""The settings that a decision depends on; they are recorded with each attempt, so that it can be repeated."""


class Wish(StrEnum):
    """What is to be changed before the next attempt."""

    NOTHING = "nothing"
    LESS_RATE = "a lower learning rate"
    LESS_BATCH = "a smaller batch"
    FEWER_WORKERS = "fewer workers"


@dataclass(frozen=True)
class Done:
    """The job has succeeded."""


@dataclass(frozen=True)
class Stop:
    """No further attempt."""

    because: str


@dataclass(frozen=True)
class Again:
    """Another attempt."""

    wish: Wish = Wish.NOTHING
    wait_s: float = 0.0
    because: str = ""


Decision = Done | Stop | Again


def as_recorded(decision: Decision) -> dict[str, object]:
    """Return a decision as its note in the ledger has it."""
    return {"decision": type(decision).__name__.lower(), **vars(decision)}


WISHES = {
    "nan_loss": Wish.LESS_RATE,
    "divergence": Wish.LESS_RATE,
    "oom_gpu": Wish.LESS_BATCH,
    "oom_host": Wish.FEWER_WORKERS,
    "oom_shm": Wish.FEWER_WORKERS,
}
PASSING = frozenset({"network", "hub_rate_limit", "hub_server_error", "hub_xet", "port_in_use", "tracker_error"})
"""What passes by itself: the same again after a while, which grows."""
AT_ONCE = frozenset({"preempted"})
FOR_A_PERSON = frozenset(
    """
    given_up script_error config_error missing_dependency version_mismatch cuda_version_mismatch shape_mismatch data_shape
    pad_token_missing device_mismatch permission_error hub_auth bf16_unsupported compile_failure grpo_batch_config
    checkpoint_recompute fsdp_param_shape disk_full resume_failure user_interrupt
    """.split()
)
"""What the same command would meet again: bad arguments, missing files, errors in the script."""


def decide(story: Sequence[Outcome], settings: RunSettings, no_room: str = "") -> Decision:
    """Return what follows the last attempt.

    Args:
        story: All attempts so far.
        settings: Those in `DECIDES_BY` count.
        no_room: Why what was to be changed cannot be, where this is asked once more because of that.

    """
    last = story[-1]
    if last.succeeded:
        return Done()
    if last.attempt.ended_by is EndedBy.SIGNAL:
        return Stop(last.says)
    if last.attempt.goes_on:
        return Stop(f"{last.attempt.goes_on}; another attempt would run beside it")
    if last.fine in FOR_A_PERSON:
        return Stop(f"{last.says.rstrip('.')}; another attempt would meet the same")
    if len(story) > settings.max_retries:
        return Stop(f"{len(story)} attempts, --max-retries {settings.max_retries}")
    wish = WISHES.get(last.fine, Wish.NOTHING)
    if wish is not Wish.NOTHING and no_room:
        return _without_change(story, settings, wish, no_room)
    if wish is Wish.NOTHING and last.fine not in PASSING and is_stuck(story):
        return Stop(_no_further(last.says))
    if wish is not Wish.NOTHING or last.fine in AT_ONCE:
        return Again(wish, 0.0, last.says)
    return Again(wish, _wait_s(story, settings), last.says)


def _without_change(story: Sequence[Outcome], settings: RunSettings, wish: Wish, no_room: str) -> Decision:
    says = story[-1].says
    if wish is not Wish.FEWER_WORKERS:
        return Stop(f"{says.rstrip('.')}; {no_room}")
    if is_stuck(story):
        return Stop(_no_further(says))
    return Again(Wish.NOTHING, settings.backoff, says)  # memory may have been somebody else's


def _no_further(says: str) -> str:
    return f"{WITHOUT_PROGRESS} attempts in a row have come no further; the last: {says}"


def _wait_s(story: Sequence[Outcome], settings: RunSettings) -> float:
    """Return how long to wait: what passes takes a while; a crash is tried again soon, later if it comes again."""
    same = 0
    for outcome in reversed(story):
        if outcome.fine != story[-1].fine:
            break
        same += 1
    first_s = settings.backoff if story[-1].fine in PASSING else min(1.0, settings.backoff)
    return min(MOST_WAIT_S, first_s * 2.0 ** min(same - 1, MOST_DOUBLINGS))


def is_stuck(story: Sequence[Outcome]) -> bool:
    """Say whether the last attempts, all with the same settings, have come no further than the one before them."""
    run: list[Outcome] = []
    for outcome in reversed(story):
        run.insert(0, outcome)
        if outcome.attempt.changes:  # it is the first with these settings
            break
    if len(run) < WITHOUT_PROGRESS:
        return False
    steps = [outcome.attempt.step for outcome in run]
    # Where not all say their step, lines of metrics are what they have in common.
    told = [step for step in steps if step is not None]
    best = told if len(told) == len(run) else [outcome.attempt.metric_lines for outcome in run]
    earlier = best[: -WITHOUT_PROGRESS + 1]
    return max(best[-WITHOUT_PROGRESS + 1 :]) <= max(earlier)
