"""Every trainer met by every kind of fault: as many updates as planned, and the weights of the clean run where that is exact.

What is not marked as a soak is the part that no other test has: every trainer with a NaN, a shortage of memory, a poisoned
batch and a return to an earlier state. `make drills` prints all of it.
"""

from __future__ import annotations

import pytest

from self_healing.adapters.family import Family
from self_healing.core.discover import discover_classes
from self_healing.drills.matrix import COLUMNS, POISONED, ROWS, STEPS, Cell, Matrix
from self_healing.drills.tiny_trl import GENERATING, TINY

from .rehearsed import quick_collections  # noqa: F401

pytestmark = pytest.mark.torch
AT_LENGTH = ("clean", "oom-checkpointing", "oom-pieces")
CELLS = [
    pytest.param(trainer, column, marks=[pytest.mark.soak] if column in AT_LENGTH else [])
    for trainer in ROWS
    for column in COLUMNS
    if trainer not in COLUMNS[column].not_for
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    import datasets

    datasets.disable_progress_bars()
    yield Matrix(tmp_path_factory.mktemp("matrix"))
    datasets.enable_progress_bars()


def test_every_family_is_in_the_matrix():
    assert set(TINY) == set(discover_classes("self_healing.adapters.families", Family))


@pytest.mark.parametrize(("trainer", "column"), CELLS)
def test_a_trainer_that_has_met_a_fault_ends_as_a_clean_one(trainer, column, matrix):
    assert matrix.cell(trainer, column).problems() == []


@pytest.mark.soak
@pytest.mark.parametrize("trainer", TINY)
def test_the_poison_does_harm_where_nobody_looks_after_the_run(trainer, matrix):
    assert matrix.unguarded(trainer, POISONED) > 1.01


@pytest.mark.parametrize("trainer", GENERATING)
def test_data_generated_for_several_steps_survive_a_return(trainer, tmp_path):
    """The buffer of a generation is part of the state that is returned to, in the middle of its use too."""
    from self_healing import HealingConfig, SelfHealingTrainer
    from self_healing.drills.faults.weight_nan import WeightNan
    from self_healing.drills.trained import same, updates

    how = {"max_steps": 30, "steps_per_generation": 4, "num_iterations": 2, "logging_steps": 1}
    clean = TINY[trainer](tmp_path / "clean", **how)
    clean.train()
    run = TINY[trainer](tmp_path / "run", **how)
    WeightNan(at_step=17).plant(run)  # the data of steps 8 to 15 were generated together, and those from 16 on
    output = SelfHealingTrainer(run, HealingConfig(snapshot_every_steps=3)).train()
    assert output.metrics["healing/rollbacks"] == 1
    assert (17 - output.metrics["healing/steps_lost"]) % 8 != 0
    assert updates(run) == 30
    assert same(run, clean)


SOUND = {"updates": STEPS, "is_finite": True, "is_same": True, "ratio": 1.0}
FAULTY = [
    ("clean", {"updates": STEPS - 1}),
    ("clean", {"is_finite": False}),
    ("nan-loss", {"is_same": False}),
    ("nan-loss", {"figures": {}}),
    (POISONED, {"ratio": 1.02}),
    (POISONED, {"ratio": float("nan")}),
    ("clean", {"error": "ValueError: no"}),
]


@pytest.mark.parametrize(("column", "change"), FAULTY)
def test_a_cell_says_what_is_wrong_with_it(column, change):
    figures = {COLUMNS[column].shows: 1}
    told = {"trainer": "sft", "column": column, "figures": figures, **SOUND}
    assert Cell(**told).problems() == []
    bad = Cell(**{**told, **change})
    assert len(bad.problems()) == 1
    assert str(bad) == "FAILED"
