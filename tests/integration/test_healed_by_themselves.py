"""Checkpoints that are written while a spike is watched: what becomes of them when it is over by itself, or is not."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

import pytest
import torch

from self_healing import HealingConfig, SelfHealingTrainer, guard
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward, with_loss_times
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.report.postmortem import read_postmortem
from self_healing.snapshots.resume import choose

from .test_sick_checkpoints import at, spike_at, verdict_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SAVING = {"save_strategy": "steps", "save_steps": 8}
CONFIG = HealingConfig(loss_spike_factor=3.0)


def verdicts(folder):
    """Return what is thought of the checkpoints of a folder, by step."""
    found = {int(path.name.removeprefix("checkpoint-")): verdict_of(path) for path in folder.glob("checkpoint-*")}
    return {step: found[step]["condition"] for step in sorted(found)}


def notes(folder, name):
    entries = read_ledger(folder / "healing/ledger.jsonl").entries
    return [entry.body["text"] for entry in entries if (entry.kind, entry.name) == ("note", name)]


def test_a_spike_that_was_over_by_itself_leaves_no_checkpoint_sick(tmp_path):
    trainer, thought = tiny_trainer(tmp_path, max_steps=64, **SAVING), {}
    spike_at(trainer, 36)
    trainer.add_callback(at("on_step_begin", 50, lambda _model: thought.update(verdicts(tmp_path))))
    SelfHealingTrainer(trainer, CONFIG).train()
    assert thought == {8: "intact", 16: "intact", 24: "intact", 32: "intact", 40: "sick", 48: "sick"}
    assert set(verdicts(tmp_path).values()) == {"intact"}
    assert verdict_of(tmp_path / "checkpoint-48")["because"] == "loss-spike began at step 37, and was over by itself"
    assert not notes(tmp_path, "last-checkpoint-sick")


def test_checkpoints_that_are_trusted_again_make_room_no_sooner_than_others_of_their_age(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=56, save_total_limit=3, **SAVING)
    spike_at(trainer, 36)
    SelfHealingTrainer(trainer, CONFIG).train()
    assert verdicts(tmp_path) == {40: "intact", 48: "intact", 56: "intact"}


def test_a_spike_for_which_the_recipe_was_changed_leaves_its_checkpoints_sick(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=64, **SAVING)
    spike_at(trainer, 36)
    config = CONFIG.with_hook(lambda _incident, plan, _run: plan.then(ScaleLearningRate()), "loss-spike")
    SelfHealingTrainer(trainer, config).train()
    ended = [e for e in read_ledger(tmp_path / "healing/ledger.jsonl").entries if e.kind == "verdict"]
    assert "recovered" in {entry.name for entry in ended}
    assert verdicts(tmp_path) == {
        8: "intact", 16: "intact", 24: "intact", 32: "intact", 40: "sick", 48: "sick", 56: "intact", 64: "intact",
    }  # fmt: skip


def test_a_spike_that_the_run_has_returned_from_leaves_its_checkpoints_sick(tmp_path):
    trainer, thought, harmed = tiny_trainer(tmp_path, max_steps=70, **SAVING), [], range(36, 60)

    def spike(step, _inputs, output):
        return with_loss_times(output, 30.0) if step in harmed and not thought else output

    def look(_model):
        if (tmp_path / "checkpoint-40").is_dir():  # it comes by the second time
            thought.append(verdicts(tmp_path))

    on_training_forward(trainer, spike)
    trainer.add_callback(at("on_step_begin", 36, look))
    SelfHealingTrainer(trainer, CONFIG).train()
    assert thought, "the run has returned"
    assert (thought[0][32], thought[0][40]) == ("intact", "sick")


def test_a_completed_run_whose_last_checkpoint_is_sick_says_so(tmp_path, caplog):
    trainer = tiny_trainer(tmp_path, max_steps=60, **SAVING)
    spike_at(trainer, 49)
    with caplog.at_level(logging.WARNING, "self_healing"):
        SelfHealingTrainer(trainer, CONFIG).train()
    assert verdicts(tmp_path)[60] == "sick"
    (told,) = notes(tmp_path, "last-checkpoint-sick")
    assert told.startswith("checkpoint-60, the last of this run, is marked sick (loss-spike began at step 50): ")
    assert 'is checkpoint-48, and train(resume_from_checkpoint="auto") goes on from there' in told
    assert choose(tmp_path).path == tmp_path / "checkpoint-48"
    assert read_postmortem(tmp_path / "postmortem.json").advice[0] == told
    assert told in caplog.messages


def test_a_completed_run_that_saves_the_model_only_names_the_newest_sound_checkpoint_too(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=60, save_only_model=True, **SAVING)
    spike_at(trainer, 49)
    SelfHealingTrainer(trainer, CONFIG).train()
    (told,) = notes(tmp_path, "last-checkpoint-sick")
    assert "the newest before it that is not is checkpoint-48" in told
    assert choose(tmp_path, model_only=True).path == tmp_path / "checkpoint-48"


def test_a_checkpoint_whose_mark_the_disk_does_not_hold_is_named_to_nobody_as_sound(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=60, **SAVING)
    spike_at(trainer, 49)

    def lose_the_mark(_model):
        manifest = tmp_path / "checkpoint-56/healing_manifest.json"
        told = json.loads(manifest.read_text())
        assert told["verdict"]["condition"] == "sick"
        manifest.write_text(json.dumps({**told, "verdict": verdict_of(tmp_path / "checkpoint-48")}))

    trainer.add_callback(at("on_train_end", 60, lose_the_mark))
    SelfHealingTrainer(trainer, CONFIG).train()
    assert verdicts(tmp_path)[56] != "sick"
    (told,) = notes(tmp_path, "last-checkpoint-sick")
    assert "the newest before it that is not is checkpoint-48" in told


@pytest.mark.parametrize(("steps", "last"), [(64, "intact"), (48, "sick")], ids=["over", "open"])
def test_the_checkpoints_of_a_loop_of_ones_own_are_judged_alike(steps, last, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    rows = torch.utils.data.TensorDataset(torch.randn(8 * steps, 8), torch.randn(8 * steps, 1))
    run = guard(model, torch.optim.AdamW(model.parameters(), 1e-4), run_dir=tmp_path, config=CONFIG, save_every=8)

    def loss_of(batch):
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        return loss * (30.0 if run.step_number == 36 else 1.0)

    for batch in run.batches(torch.utils.data.DataLoader(rows, batch_size=8)):
        with run.step(batch) as s:
            s.backward(loss_of, batch)
    run.close()
    found = verdicts(tmp_path)
    assert (found[32], found[40], found[steps]) == ("intact", last, last)
    assert [told.split(",")[0] for told in notes(tmp_path, "last-checkpoint-sick")] == ["checkpoint-48"] * (steps == 48)


KILLED = """
import json, os, signal, sys
from pathlib import Path
from self_healing import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from tests.integration.test_healed_by_themselves import CONFIG, SAVING
from tests.integration.test_sick_checkpoints import spike_at, verdict_of

def before_a_mark_is_lifted(event, args):
    if event == "os.rename" and str(args[1]).endswith("checkpoint-48/healing_manifest.json"):
        there, new = Path(args[1]), Path(args[0])
        if there.exists() and "sick" in there.read_text() and "sick" not in new.read_text():
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(before_a_mark_is_lifted)
trainer = tiny_trainer(sys.argv[1], max_steps=70, **SAVING)
spike_at(trainer, 36)
SelfHealingTrainer(trainer, CONFIG).train()
"""


def test_a_kill_between_the_end_of_a_spike_and_the_new_verdict_leaves_the_mark(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    entries = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    assert ("loss-spike", "recovered") in {(entry.name, entry.body.get("reason")) for entry in entries}
    assert verdict_of(tmp_path / "checkpoint-48")["condition"] == "sick"
    assert choose(tmp_path).path != tmp_path / "checkpoint-48"
