"""Rules that look once in a block of observations: what goes on is one incident, whatever else is reported in between."""

from __future__ import annotations

import math

import pytest

from self_healing.core.failure import Mode
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Metrics
from self_healing.detectors.gradient_norm_growth import GradientNormGrowth
from self_healing.detectors.gradient_vanishing import GradientVanishing
from self_healing.detectors.loss_plateau import LossPlateau
from self_healing.detectors.memory_creep import GAUGES, MemoryCreep

STEPS = 600
SICK = {
    GradientVanishing: lambda _: {"loss": 2.3, "grad_norm": 1e-9},
    GradientNormGrowth: lambda i: {"loss": 1.0, "grad_norm": 10 ** (i / 384)},
    LossPlateau: lambda _: {"loss": 3.0, "grad_norm": 1.0},
    MemoryCreep: lambda i: {"loss": 1.0, GAUGES[0]: 1e9 * (1.0 + i / 100)},
}


def told(rule, values, steps=STEPS, well_from=10**9):
    """Return what is written of incidents where each step reports its own and, for the log, something else."""
    ledger = MemoryLedger()
    healer = Healer(settings=Settings(mode=Mode.OBSERVE), rules=(rule,), ledger=ledger)
    for step in range(1, steps + 1):
        is_well = {"loss": math.exp(-step / 100), "grad_norm": 1.0, GAUGES[0]: 1e9}
        healer.observe(Metrics(step=step, time_s=step, values=is_well if step >= well_from else values(step)))
        healer.observe(Metrics(step=step, time_s=step, values={"entropy": 1.0}))
    return [entry.body.get("reason", "opened") for entry in ledger.entries if entry.kind == "incident"]


@pytest.mark.parametrize("rule", SICK, ids=lambda rule: rule.__name__)
def test_what_goes_on_is_told_once(rule):
    assert told(rule(), SICK[rule]) == ["opened"]


@pytest.mark.parametrize("rule", SICK, ids=lambda rule: rule.__name__)
def test_what_is_over_has_passed(rule):
    assert told(rule(), SICK[rule], steps=2 * STEPS, well_from=STEPS) == ["opened", "passed"]
