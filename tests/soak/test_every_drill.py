"""Every fault of the catalogue is healed, and each drill fails without what it is there to prove."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from self_healing.drills.drill import drill
from self_healing.drills.stages import faults

pytestmark = [pytest.mark.soak, pytest.mark.torch, pytest.mark.timeout(1800)]  # a busy machine takes its time


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "bench")
        yield importlib.import_module("drill_mutations")
    del sys.modules["drill_mutations"]


@pytest.mark.parametrize("seed", [0, 1])
def test_every_fault_is_healed(seed, tmp_path):
    card = drill(tmp_path, seed=seed, unprotected=seed == 0)
    assert [(each.fault, each.problems) for each in card.scores if not each.passed] == []
    assert card.false_alarms == 0


def test_a_drill_fails_without_the_ability_that_it_proves(bench, tmp_path):
    found = list(bench.without(tmp_path))
    untried = set(faults()) - {each.drill for each in found}
    assert untried == {"clock-jump"}, "where nothing is to be found, there is nothing to take away"
    assert [(each.drill, each.mutation.what) for each in found if not each.problems] == []
