"""A checkpoint that is written in a hurry, for a signal or an exception, says at once what is wrong with its state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward, once_before_forward, with_loss_times
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.snapshots.resume import choose

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture
def terminated():
    """Let a SIGTERM that is passed on at the end do nothing."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


def at(event, step, do):
    """Return a callback that does something at an event of one step."""
    from transformers import TrainerCallback

    class At(TrainerCallback):
        pass

    def handle(self, args, state, control, model=None, **kwargs):
        if state.global_step == step:
            do(model)

    setattr(At, event, handle)
    return At()


def terminate(_model=None):
    os.kill(os.getpid(), signal.SIGTERM)


def scale(model):
    """Multiply a matrix, as a flipped bit of its exponents does: finite, and nothing that training has done."""
    model.model.layers[0].mlp.down_proj.weight.data.mul_(40.0)


def break_one(model):
    """Make one weight NaN."""
    model.model.layers[0].mlp.down_proj.weight.data[0, 0] = float("nan")


def spike_at(trainer, at_step):
    on_training_forward(
        trainer, lambda step, _inputs, output: with_loss_times(output, 30.0) if step == at_step else output
    )


def verdict_of(folder):
    """Return the verdict of a checkpoint's manifest."""
    return json.loads((folder / "healing_manifest.json").read_text())["verdict"]


def test_the_weights_are_harmed_between_steps_and_a_signal_ends_the_run_there(tmp_path, terminated):
    trainer = tiny_trainer(tmp_path, max_steps=-1, num_train_epochs=2)

    def harm(model):
        scale(model)
        terminate()

    trainer.add_callback(at("on_epoch_end", 40, harm))
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    verdict = verdict_of(tmp_path / "checkpoint-40")
    assert verdict["condition"] == "sick", verdict


def test_the_weights_are_harmed_in_the_step_in_which_an_exception_ends_the_run(tmp_path):
    trainer = tiny_trainer(tmp_path)

    def fail(model):
        scale(model)
        raise KeyError("mine")

    once_before_forward(trainer, 30, fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10, max_effect="nothing")).train()
    verdict = verdict_of(tmp_path / "checkpoint-30")
    assert verdict["condition"] == "sick", verdict


def test_the_step_that_a_callback_ends_the_run_after_speaks_for_its_checkpoint(tmp_path):
    def fail(_model):
        raise KeyError("mine")

    trainer = tiny_trainer(tmp_path, max_steps=12, callbacks=[at("on_step_end", 9, fail)])
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=8)).train()
    verdict = verdict_of(tmp_path / "checkpoint-9")
    assert verdict["condition"] == "intact", verdict


@pytest.mark.parametrize(
    "more", [{}, {"snapshot_memory_fraction": 0.0, "max_effect": "nothing"}], ids=["states", "none"]
)
def test_the_loss_leaves_its_level_in_the_step_in_which_a_signal_comes(more, tmp_path, terminated):
    trainer = tiny_trainer(tmp_path)
    spike_at(trainer, 40)
    trainer.add_callback(at("on_step_begin", 40, terminate))
    SelfHealingTrainer(trainer, HealingConfig(loss_spike_factor=3.0, **more)).train()
    verdict = verdict_of(tmp_path / "checkpoint-41")
    assert verdict["condition"] == "sick", verdict
    assert "loss-spike" in verdict["because"]


def test_the_loss_leaves_its_level_in_the_step_before_an_exception_ends_the_run(tmp_path):
    """What a step has shown is looked at during the next one, which never comes to its end."""
    trainer = tiny_trainer(tmp_path)
    spike_at(trainer, 40)

    def fail(_model):
        raise KeyError("mine")

    once_before_forward(trainer, 41, fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, HealingConfig(loss_spike_factor=3.0, max_effect="nothing")).train()
    verdict = verdict_of(tmp_path / "checkpoint-41")
    assert verdict["condition"] == "sick", verdict
    assert "loss-spike" in verdict["because"]


def test_nothing_is_wrong_and_the_checkpoint_of_a_signal_is_intact(tmp_path, terminated):
    trainer = tiny_trainer(tmp_path)
    trainer.add_callback(at("on_step_begin", 40, terminate))
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    assert verdict_of(tmp_path / "checkpoint-41")["condition"] == "intact"


def test_a_run_that_breaks_for_good_keeps_its_last_weights_and_they_are_not_called_corrupted(tmp_path):
    """It fails earlier after the return than before, and the state of the later step is put back for the end."""
    trainer = tiny_trainer(tmp_path)
    broken = []

    def fail(step, _inputs, output):
        if step == 37 or broken:
            broken.append(step)
            raise KeyError("mine")
        return output

    on_training_forward(trainer, fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    assert broken[0] > broken[-1], "it has not come as far again"
    assert verdict_of(tmp_path / "checkpoint-37")["condition"] == "intact"
    told = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    assert {entry.name for entry in told if entry.kind == "incident"} == {"crashed"}


def test_no_sound_checkpoint_makes_room_for_one_of_weights_that_broke_just_before_it(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 10, "save_total_limit": 1, "max_steps": 25}
    trainer, there = tiny_trainer(tmp_path, **saving), []
    trainer.add_callback(at("on_step_end", 20, break_one))
    trainer.add_callback(at("on_save", 20, lambda _model: there.extend(sorted(p.name for p in tmp_path.glob("ch*")))))
    config = HealingConfig(snapshot_memory_fraction=0.0, max_effect="nothing")
    SelfHealingTrainer(trainer, config).train()
    assert there == ["checkpoint-10", "checkpoint-20"]
    assert verdict_of(tmp_path / "checkpoint-20")["condition"] == "sick"
    assert verdict_of(tmp_path / "checkpoint-10")["condition"] == "intact"


def test_sick_checkpoints_make_room_before_sound_ones_when_the_trouble_is_over(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 8, "save_total_limit": 2, "max_steps": 57}
    trainer, there = tiny_trainer(tmp_path, **saving), {}
    spike_at(trainer, 36)
    for step in (48, 56):
        look = partial(there.__setitem__, step)
        trainer.add_callback(
            at("on_save", step, lambda _model, look=look: look(sorted(p.name for p in tmp_path.glob("ch*"))))
        )
    config = HealingConfig(loss_spike_factor=3.0)
    config = config.with_hook(lambda _incident, plan, _run: plan.then(ScaleLearningRate()), "loss-spike")
    SelfHealingTrainer(trainer, config).train()
    assert there[48] == ["checkpoint-24", "checkpoint-32", "checkpoint-40", "checkpoint-48"]
    assert there[56] == ["checkpoint-32", "checkpoint-56"], "the newest sound one of before, too"


KILLED = """
import os, signal, sys
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from tests.integration.test_sick_checkpoints import at, scale

trainer = tiny_trainer(sys.argv[1], save_strategy="steps", save_steps=10, max_steps=25)
trainer.add_callback(at("on_step_end", 20, scale))
trainer.add_callback(at("on_save", 20, lambda _model: os.kill(os.getpid(), signal.SIGKILL)))
SelfHealingTrainer(trainer, HealingConfig(shared_memory=False, snapshot_every_steps=10)).train()
"""


def test_a_kill_right_after_a_save_leaves_no_corrupted_checkpoint_that_is_not_marked(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    assert verdict_of(tmp_path / "checkpoint-20")["condition"] == "sick"
    assert choose(tmp_path).path == tmp_path / "checkpoint-10"


def test_a_sick_checkpoint_is_written_and_not_pushed(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, save_strategy="steps", save_steps=10, max_steps=30)
    pushed = []
    monkeypatch.setattr(trainer, "_push_from_checkpoint", lambda folder: pushed.append(Path(folder).name))
    trainer.args.push_to_hub = True
    trainer.add_callback(at("on_step_end", 20, scale))
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10, max_effect="nothing")).train()
    assert pushed == ["checkpoint-10"]
    assert verdict_of(tmp_path / "checkpoint-20")["condition"] == "sick"
    told = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    assert "sick-not-pushed" in {entry.name for entry in told}
