"""Drills with harm that has reached weights, moments or checkpoints: only an earlier state helps."""

from __future__ import annotations

import math

import pytest

from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, updates, weights

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]  # a run that returns for ever must not last
FAULTS = discover_classes("self_healing.drills.faults", Fault)
ROLLED_BACK = [name for name, fault in FAULTS.items() if fault.needs_rollback]
UPDATES = 60


def eval_loss(trainer):
    """Evaluate the weights alone, without the hooks by which faults are planted."""
    fresh = tiny_trainer(trainer.args.output_dir)
    fresh.model.load_state_dict(trainer.model.state_dict())
    return fresh.evaluate()["eval_loss"]


def bits(trainer):
    """Return the weights as they are in memory: NaN is not equal to itself."""
    return weights(trainer).numpy().tobytes()


def planted(fault, folder, *, options=None, **arguments):
    trainer = tiny_trainer(folder, **arguments)
    FAULTS[fault](**(options or {})).plant(trainer)
    return trainer


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), max_steps=UPDATES)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Stock runs with a fault, trained once each."""
    done = {}

    def get(fault):
        if fault not in done:
            done[fault] = planted(fault, tmp_path_factory.mktemp("stock"))
            done[fault].train()
        return done[fault]

    return get


# -- what the faults do to a stock Trainer -------------------------------------------------------------

ENDS_BROKEN = {"weight-nan", "flipped-bits", "moments-corrupted"}


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_a_stock_trainer_is_ruined_and_says_nothing(fault, clean, stock):
    trainer = stock(fault)
    assert updates(trainer) == UPDATES, "it went on to the end"
    harmed = eval_loss(trainer)
    assert math.isnan(harmed) is (fault in ENDS_BROKEN)
    assert not harmed <= 1.1 * eval_loss(clean)
    if math.isnan(harmed):
        assert losses(trainer)[-1] == 0.0, "what the log of a stock Trainer makes of NaN"


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_a_fault_is_exactly_repeatable(fault, stock, tmp_path):
    again = planted(fault, tmp_path)
    again.train()
    assert bits(again) == bits(stock(fault))


@pytest.mark.parametrize("fault", [name for name in ROLLED_BACK if name != "learning-rate-too-high"])
def test_nothing_is_harmed_before_its_step(fault, clean, tmp_path):
    first, second = planted(fault, tmp_path / "a", logging_steps=1), tiny_trainer(tmp_path / "b", logging_steps=1)
    at_step = FAULTS[fault]().at_step
    for trainer in (first, second):
        trainer.args.max_steps = UPDATES
        _stop_after(trainer, at_step)
        trainer.train()
        assert updates(trainer) == at_step
    assert bits(first) == bits(second)


def _stop_after(trainer, step):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == step

    trainer.add_callback(Stop())
