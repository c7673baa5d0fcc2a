"""A sick run, made up but always the same, through the real core, told in plain words: needs no framework."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..readers import Observation
    from ..replay import ReplayResult

SEED = 20240229
SPIKE, NOT_A_NUMBER, DIVERGENCE, LAST = 220, 330, 430, 480

CHAPTERS = (
    (0, f"From step 0 the loss falls from 3.2, as it should. At step {SPIKE} one batch is bad."),
    (NOT_A_NUMBER - 10, f"At step {NOT_A_NUMBER} the loss is not a number: for one step only."),
    (DIVERGENCE - 10, f"From step {DIVERGENCE} on the loss climbs and does not come back."),
)


def replay_sick_run() -> ReplayResult:
    """Return what the core finds in the made-up run, and what it would do."""
    from pathlib import Path

    from ..config import HealingConfig
    from ..readers import Format
    from ..replay import ReplayResult, replay_observations

    result = ReplayResult(path=Path("demo"), format=Format.CSV)
    replay_observations(sick_run(), HealingConfig(), result)
    return result


def sick_run() -> Iterator[Observation]:
    """Yield a run that falls healthily, has one spike and one NaN, and then diverges; the same every time."""
    from ..core.signal import Metrics
    from ..readers import Observation

    dice = random.Random(SEED)  # noqa: S311  # noise for a demonstration
    climb = 0.0
    for step in range(LAST):
        loss = 1.4 + 1.8 * math.exp(-step / 120) + dice.gauss(0, 0.04)
        grad_norm = 0.9 + 0.6 * math.exp(-step / 150) + abs(dice.gauss(0, 0.08))
        if step == SPIKE:
            loss, grad_norm = 9.7, 38.0
        elif step == NOT_A_NUMBER:
            loss, grad_norm = math.nan, math.nan
        elif step >= DIVERGENCE:
            climb += 0.06 + 0.02 * dice.random()
            loss, grad_norm = loss + climb, grad_norm * (1 + climb)
        values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": 2e-4}
        yield Observation(0, Metrics(step=step, time_s=0.4 * step, values=values))


def tell(result: ReplayResult) -> None:
    """Print the story of the made-up run."""
    from .output import show

    show(f"A recorded run of {result.observations} steps, shown to the same core that watches real runs.\n")
    ends = [start for start, _ in CHAPTERS[1:]] + [LAST + 1]
    for (start, text), end in zip(CHAPTERS, ends, strict=True):
        show(text)
        for line in _what_happened(result, start, end):
            show(line)
        show()
    counted = len(result.plans)
    show(
        f"{len(result.incidents)} incidents, {counted} plans. Nothing was carried out: this run is over, and was made up."
    )
    show("Try it on a run of yours: heal replay trainer_state.json")


def _what_happened(result: ReplayResult, start: int, end: int) -> Iterator[str]:
    happened = [
        (found.step, 0, f"noticed {found.name} ({found.severity}): {found.because}")
        for found in result.incidents
        if start <= found.step < end
    ]
    for proposal in result.plans:
        plan = proposal.plan
        if start <= plan.step < end:
            cost = {"nothing": "costs nothing", "time": "costs time", "recipe": "changes the recipe"}[str(plan.effect)]
            names = " and ".join(action.name() for action in plan.actions)
            does = ", then ".join(_in_a_sentence(action.summary()) for action in plan.actions)
            happened.append((plan.step, 1, f"would {names} for {plan.incident} ({cost}): {does}"))
    for step, _, text in sorted(happened):
        yield f"  step {step}: {text}"


def _in_a_sentence(summary: str) -> str:
    return summary[:1].lower() + summary[1:].rstrip(".")
