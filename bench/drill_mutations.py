"""Is each drill worth anything? One ability of the healer is taken away at a time, and the drills that need it must fail.

`python bench/drill_mutations.py` prints a table and ends with 1 where a drill passes without what it is there to prove.
Everything is taken away through settings, as a user could; nothing of the source is changed. About two minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from self_healing.drills.drill import WITH_TRANSFORMERS, clean_stage
from self_healing.drills.scoring import found_in, score
from self_healing.drills.stages import faults
from self_healing.drills.warm import Warm


@dataclass(frozen=True)
class Mutation:
    """Something taken away, and the drills that must notice."""

    what: str
    config: dict[str, Any]
    drills: tuple[str, ...]
    run_options: tuple[str, ...] = field(default=())
    """Options of `heal run`, where it is the supervisor that loses something."""


MUTATIONS = (
    Mutation("updates that are not finite are let through", {"nan_action": "warn"}, ("nan-loss", "infinite-gradient")),
    Mutation("nothing is done about memory", {"oom_action": "raise"}, ("oom-once-in-forward", "oom-once-in-backward", "oom-without-checkpointing", "host-memory")),
    Mutation("micro-batches are tried again, not split", {"oom_action": "retry"}, ("oom-above-two-rows",)),
    Mutation("no states in memory", {"snapshot_memory_fraction": 0.0}, ("weight-nan", "flipped-bits", "moments-corrupted", "attention-scaled")),
    Mutation("gradient outliers are not clipped", {"zclip_enabled": False}, ("poisoned-batch",)),
    Mutation("the recipe may not be changed", {"max_effect": "time"}, ("raising-record", "wrong-shape-record", "collator-record", "learning-rate-too-high", "nan-record")),
    Mutation("no rule for a run that is dead from its start", {"ignore": ["dead-run"]}, ("learning-rate-too-high",)),
    Mutation("no rules for divergence and exploding gradients", {"ignore": ["loss-divergence", "gradient-explosion"]}, ("poisoned-batches",)),
    Mutation("nothing is done, only told", {"mode": "advise"}, ("nan-loss", "weight-nan", "network-timeouts", "disk-full", "checkpoint-corrupt", "checkpoint-truncated", "nan-from-then-on")),
    Mutation("checkpoints are not judged: a run that is only told of", {"mode": "observe"}, ("checkpoint-sick",)),
    Mutation("no rule for slow ranks", {"ignore": ["rank-straggling"]}, ("slow-rank",)),
    Mutation("no states in memory, on ranks", {"snapshot_memory_fraction": 0.0}, ("rank-disagrees",)),
    Mutation("no states outside of the process", {"shared_memory": False}, ("sigkill", "sigstop", "rank-killed")),
    Mutation("the command is not started again", {}, ("sigterm",), ("--max-retries", "0")),
    Mutation("nothing is done about memory", {"oom_action": "raise"}, ("oom-in-packed-rows",)),
    Mutation("no rule for evaluations", {"ignore": ["eval-not-finite"]}, ("nan-in-eval",)),
    Mutation("nothing is done, only told", {"mode": "advise"}, ("tracker-down", "hub-down", "reward-raises", "reward-hangs")),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What became of one drill without something."""

    mutation: Mutation
    drill: str
    problems: tuple[str, ...]
    """Why it failed; empty where it passed all the same."""


def without(folder: Path, mutations: tuple[Mutation, ...] = MUTATIONS) -> Iterator[Verdict]:
    """Run each drill without what its mutation takes away."""
    with ExitStack() as stack:
        warms = {kind: stack.enter_context(closing(Warm(kind))) for kind in ("loop", "trainer")}
        yield from _without(warms, folder, mutations)


def _without(warms: dict[str, Warm], folder: Path, mutations: tuple[Mutation, ...]) -> Iterator[Verdict]:
    clean: dict[str, dict[str, Any]] = {}
    for number, mutation in enumerate(mutations):
        for name in mutation.drills:
            kind = faults()[name]
            stage = clean_stage(kind)
            warm = warms["trainer" if kind.stage in WITH_TRANSFORMERS else "loop"]
            if stage not in clean:
                clean[stage] = warm.run(_job(folder / f"clean-{stage}", stage, None, Mutation("", {}, ())))
            place = folder / f"{number}-{name}"
            ended = warm.run(_job(place, kind.stage, name, mutation))
            assert "ConfigError" not in str(ended.get("raised")), (
                f"a drill must not fail of a wrong setting: {ended['raised']}"
            )
            yield Verdict(mutation, name, score(name, kind.expected, found_in(place), ended, clean[stage]).problems)


def _job(folder: Path, stage: str, fault: str | None, mutation: Mutation) -> dict[str, Any]:
    return {
        "stage": stage, "fault": fault, "folder": str(folder), "seed": 0, "guarded": True, "config": mutation.config,
        "run_options": list(mutation.run_options),
    }  # fmt: skip


def main() -> int:
    """Print the table."""
    passed = 0
    print("| taken away | drill | fails, because |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for each in without(Path(folder)):
            passed += not each.problems
            how = ", ".join(f"`{key} = {value!r}`" for key, value in each.mutation.config.items()) or " ".join(
                each.mutation.run_options
            )
            print(
                f"| {each.mutation.what} ({how}) | `{each.drill}` | {'; '.join(each.problems) or '**it passes**'} |",
                flush=True,
            )
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
