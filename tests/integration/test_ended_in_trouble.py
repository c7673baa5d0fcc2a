"""A run that ends as completed while trouble is watched says so; one that is well says nothing."""

from __future__ import annotations

import logging

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward, with_loss_times
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.report.postmortem import read_postmortem

from .test_given_up import trained_loop
from .test_healed_by_themselves import CONFIG, SAVING, notes
from .test_sick_checkpoints import at, spike_at

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def stopping_early_at(step, folder, **more):
    """Return a trainer of 60 steps that a callback ends earlier, as the one of transformers does."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step >= step

    trainer = tiny_trainer(folder, max_steps=60, **more)
    trainer.add_callback(Stop())
    return trainer


def exit_reason(folder):
    return read_postmortem(folder / "postmortem.json").exit_reason


@pytest.mark.parametrize("more", [{}, SAVING], ids=["nothing saved", "saved"])
def test_a_run_that_is_stopped_early_while_a_spike_is_watched_says_so(more, tmp_path, caplog):
    trainer = stopping_early_at(40, tmp_path, **more)
    spike_at(trainer, 36)
    with caplog.at_level(logging.WARNING, "self_healing"):
        SelfHealingTrainer(trainer, CONFIG).train()
    assert exit_reason(tmp_path) == "completed"
    (told,) = notes(tmp_path, "ended-in-trouble")
    assert told.startswith(
        "The run has ended at step 40, before the 60 that were planned, in trouble that was not over: "
    )
    assert "loss-spike, last seen at step 37 (loss " in told
    assert told in read_postmortem(tmp_path / "postmortem.json").advice
    assert told in caplog.messages


def test_a_run_that_is_stopped_early_right_after_a_return_says_what_it_has_returned_from(tmp_path):
    trainer, ended = stopping_early_at(60, tmp_path), []

    def harmed(step, _inputs, output):
        return with_loss_times(output, 30.0) if 36 <= step < 60 and not ended else output

    def is_back(event):
        return (event.kind, event.name) == ("signal", "returned")

    def stop(_model):
        if any(is_back(each) for each in read_ledger(tmp_path / "healing/ledger.jsonl").entries):
            ended.append(1)
            trainer.control.should_training_stop = True

    on_training_forward(trainer, harmed)
    trainer.add_callback(at("on_step_end", 37, stop))
    # Else the run returns at once, to right before the place, and is past it again in one step.
    SelfHealingTrainer(trainer, HealingConfig(loss_spike_factor=3.0, ignore=("gradient-explosion",))).train()
    assert ended
    assert exit_reason(tmp_path) == "completed"
    (told,) = notes(tmp_path, "ended-in-trouble")
    assert "returned from to step" in told


def test_a_loop_whose_spike_is_watched_when_its_data_end_says_so(tmp_path):
    trained_loop(tmp_path, lambda step: 30.0 if step == 38 else 1.0, steps=40)
    (told,) = notes(tmp_path, "last-checkpoint-sick")  # which says the same
    assert not notes(tmp_path, "ended-in-trouble")
    trained_loop(tmp_path / "unsaved", lambda step: 30.0 if step == 33 else 1.0, steps=36)
    (told,) = notes(tmp_path / "unsaved", "ended-in-trouble")
    assert told.startswith("The run has ended at step 36, in trouble that was not over: ")


@pytest.mark.parametrize("last", [20, 60], ids=["early", "as planned"])
def test_a_run_that_is_well_at_its_end_says_nothing(last, tmp_path):
    trainer = stopping_early_at(last, tmp_path)
    spike_at(trainer, 30)  # which is over long before the end
    SelfHealingTrainer(trainer, CONFIG).train()
    assert not notes(tmp_path, "ended-in-trouble")


def test_a_warning_that_is_open_at_an_early_end_is_no_trouble(tmp_path):
    trainer = stopping_early_at(40, tmp_path, learning_rate=0.0)
    SelfHealingTrainer(trainer, HealingConfig()).train()
    assert not notes(tmp_path, "ended-in-trouble")
