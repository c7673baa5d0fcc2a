"""Signals and exceptions end a run with a checkpoint that can be resumed, and then do what they came for."""

from __future__ import annotations

import os
import signal

import pytest

from self_healing import HealingConfig, Preempted, UnrecoverableError
from self_healing.adapters.run.checkpoint_folders import newest_usable
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.snapshots.checkpoint_check import check

pytestmark = pytest.mark.torch


def send_at(trainer, step, number):
    from transformers import TrainerCallback

    class Send(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step:
                os.kill(os.getpid(), number)

    trainer.add_callback(Send())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_run_and_then_reaches_the_users_handler(number, tmp_path):
    got = []
    before = signal.signal(number, lambda n, frame: got.append(n))
    mine = signal.getsignal(number)
    try:
        trainer = tiny_trainer(tmp_path)
        send_at(trainer, 10, number)
        SelfHealingTrainer(trainer).train()
        assert got == [number]
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)
    folder, _ = newest_usable(tmp_path, None)
    assert folder.step == 11
    resumed = tiny_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(folder.path))
    clean = tiny_trainer(tmp_path / "clean")
    clean.train()
    assert all((a == b).all() for a, b in zip(resumed.model.parameters(), clean.model.parameters(), strict=True))


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_is_asked_to_end_saves_once_and_leaves_without_an_evaluation(strategy, tmp_path):
    from transformers import TrainerCallback

    seen = []

    class Saved(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen.append("saved by the loop")

    before = signal.signal(signal.SIGTERM, lambda n, frame: None)
    try:
        trainer = tiny_trainer(
            tmp_path, eval_strategy=strategy, eval_steps=11, save_strategy=strategy, save_steps=11, callbacks=[Saved()]
        )
        trainer.model.register_forward_hook(lambda module, *_: None if module.training else seen.append("evaluated"))
        send_at(trainer, 10, signal.SIGTERM)
        SelfHealingTrainer(trainer).train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert trainer.state.global_step == newest_usable(tmp_path, None)[0].step == 11
    assert seen == []


def test_a_run_that_saves_the_model_alone_is_saved_when_it_is_asked_to_end(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=12, save_strategy="steps", save_steps=4, save_only_model=True)
    send_at(trainer, 6, signal.SIGTERM)
    with pytest.raises(Preempted, match=r"at step 7, and it is saved: .* it goes on from there"):
        SelfHealingTrainer(trainer).train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-7"]


def test_a_signal_that_is_no_preemption_saves_and_training_goes_on(tmp_path):
    trainer = tiny_trainer(tmp_path)
    send_at(trainer, 10, signal.SIGUSR1)
    SelfHealingTrainer(trainer, HealingConfig(preemption_signals=("SIGTERM",))).train()
    assert trainer.state.global_step == 60
    assert (tmp_path / "checkpoint-11" / "trainer_state.json").exists()


def test_a_signal_that_the_program_has_a_use_for_saves_reaches_it_and_training_goes_on(tmp_path):
    got = []
    before = signal.signal(signal.SIGUSR1, lambda n, frame: got.append(n))
    try:
        trainer = tiny_trainer(tmp_path)
        send_at(trainer, 10, signal.SIGUSR1)
        SelfHealingTrainer(trainer).train()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (got, trainer.state.global_step) == ([signal.SIGUSR1], 60)
    assert (tmp_path / "checkpoint-11" / "trainer_state.json").exists()


def test_an_unhandled_exception_leaves_a_checkpoint_of_the_last_complete_step(tmp_path):
    trainer = tiny_trainer(tmp_path)

    def fail(module, args):
        if trainer.state.global_step == 7:
            raise KeyError("mine")

    trainer.model.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer).train()
    assert newest_usable(tmp_path, None)[0].step == 7


def test_no_checkpoint_is_made_of_weights_that_are_not_finite(tmp_path):
    trainer = tiny_trainer(tmp_path)

    def fail(module, args):
        if trainer.state.global_step == 7:
            next(module.parameters()).data[0] = float("nan")
            raise KeyError("mine")

    trainer.model.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer).train()
    written = newest_usable(tmp_path, None)[0]
    assert written.step < 7, "the newest sound state in memory"
    assert check(written.path, finite=True).problems == ()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1


@pytest.mark.parametrize("ending", ["completed", "exception", "unrecoverable", "sigterm"])
def test_there_is_a_postmortem_whatever_ended_the_run(ending, tmp_path):
    from self_healing.drills.faults.nan_from_then_on import NanFromThenOn
    from self_healing.drills.faults.nan_loss import NanLoss
    from self_healing.report.postmortem import read_postmortem

    trainer = tiny_trainer(tmp_path, max_steps=40)
    NanLoss(at_step=5).plant(trainer)
    before = signal.signal(signal.SIGTERM, lambda n, frame: None)
    try:
        if ending == "exception":
            trainer.model.register_forward_pre_hook(
                lambda *a: (_ for _ in ()).throw(KeyError("mine")) if trainer.state.global_step == 9 else None
            )
        elif ending == "unrecoverable":
            NanFromThenOn(at_step=9).plant(trainer)
        elif ending == "sigterm":
            send_at(trainer, 9, signal.SIGTERM)
        try:
            SelfHealingTrainer(trainer).train()
        except (KeyError, UnrecoverableError):
            assert ending in ("exception", "unrecoverable")
    finally:
        signal.signal(signal.SIGTERM, before)
    told = read_postmortem(tmp_path / "postmortem.json")
    assert told.exit_reason == ending
    assert told.exception_type == {"exception": "KeyError", "unrecoverable": "UnrecoverableError"}.get(ending)
    assert told.last_step == trainer.state.global_step
    assert told.recovery_actions[0]["failure"] == "nan_loss"
    assert "transformers" in told.versions
