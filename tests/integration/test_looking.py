"""Every step is looked at once and in order, whatever else happens to the trainer."""

from __future__ import annotations

import copy

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import same

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


def steps_looked_at(folder):
    entries = read_ledger(folder / "healing/ledger.jsonl").entries
    return [e.step for e in entries if e.kind == "signal" and e.name == "metrics" and "loss" in e.body["values"]]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), max_steps=12)
    trainer.train()
    return trainer


def stopping_with(error, at_step):
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == at_step:
                raise error

    return Stopping()


@pytest.mark.parametrize("error", [NameError("mine"), KeyboardInterrupt()])
def test_a_run_that_ends_by_an_exception_loses_no_observation(error, tmp_path):
    trainer = tiny_trainer(tmp_path, callbacks=[stopping_with(error, 7)], logging_steps=100)
    with pytest.raises(type(error)):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()
    assert steps_looked_at(tmp_path) == list(range(1, 8))


def test_a_trainer_that_is_copied_in_the_middle_goes_on(clean, tmp_path):
    from transformers import TrainerCallback

    copies = []

    class Copying(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                copies.append(copy.deepcopy(trainer))

    trainer = tiny_trainer(tmp_path, max_steps=12, callbacks=[Copying()])
    SelfHealingTrainer(trainer).train()
    assert same(trainer, clean)
    assert len(copies) == 1
    assert not same(copies[0], trainer), "a state of its own"


def test_two_trainings_one_inside_the_other_do_not_disturb_each_other(clean, tmp_path):
    from transformers import TrainerCallback

    class Nesting(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                SelfHealingTrainer(inner).train()

    outer = tiny_trainer(tmp_path / "outer", max_steps=12, callbacks=[Nesting()])
    inner = tiny_trainer(tmp_path / "inner", max_steps=12)
    FAULTS["nan-loss"](at_step=5).plant(inner)
    SelfHealingTrainer(outer).train()
    assert same(inner, clean)
    assert outer.state.global_step == inner.state.global_step == 12
    for name in ("outer", "inner"):
        assert steps_looked_at(tmp_path / name) == sorted(steps_looked_at(tmp_path / name))
