"""A folder that an earlier run has used: what that one went through is its own, unless it is being continued."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingCallback, SelfHealingTrainer, UnrecoverableError
from self_healing.core.errors import LedgerError
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import weights
from self_healing.readers import open_recording
from self_healing.replay import replay
from self_healing.report.postmortem import read_postmortem

from .guarded_data import FAULTS

pytestmark = pytest.mark.torch


def saving_trainer(folder, steps):
    return tiny_trainer(folder, max_steps=steps, save_strategy="steps", save_steps=4)


def spoil_a_weight_once(trainer):
    done = []

    def spoil(module, args):
        if trainer.state.global_step == 9 and not done:
            done.append(True)
            trainer.model.model.layers[1].self_attn.v_proj.weight.data[0, 0] = math.nan

    trainer.model.register_forward_pre_hook(spoil)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that had to go back to a checkpoint once."""
    folder = tmp_path_factory.mktemp("finished")
    trainer = saving_trainer(folder, 16)
    spoil_a_weight_once(trainer)
    assert SelfHealingTrainer(trainer).train().metrics["healing/recovery_attempts"] == 1
    assert read_postmortem(folder / "postmortem.json").steps_lost > 0
    return folder


@pytest.fixture
def used(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "used")


def test_a_fresh_run_starts_with_empty_budgets_and_tells_of_itself_alone(used):
    lines = (used / "healing" / "ledger.jsonl").read_bytes()
    output = SelfHealingTrainer(saving_trainer(used, 6)).train()
    assert output.metrics["healing/recovery_attempts"] == 0
    told = read_postmortem(used / "postmortem.json")
    assert (len(told.attempts), told.recovery_actions, told.incidents, told.steps_lost) == (1, [], [], 0)
    assert (told.skipped_steps, told.seconds_lost, told.last_step) == (0, 0.0, 6)
    assert (used / "healing" / "ledger.jsonl").read_bytes().startswith(lines), "the ledger is only appended to"
    assert replay(open_recording(used / "healing" / "ledger.jsonl")).exact


def test_a_resumed_run_knows_what_was_spent_before_it(used):
    output = SelfHealingTrainer(saving_trainer(used, 20)).train(resume_from_checkpoint="auto")
    assert output.metrics["healing/recovery_attempts"] == 1
    assert len(read_postmortem(used / "postmortem.json").attempts) == 2


def test_a_resumed_run_knows_nothing_of_what_was_before_the_fresh_one_it_continues(used):
    for checkpoint in used.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    SelfHealingTrainer(saving_trainer(used, 4)).train(resume_from_checkpoint="auto")  # there is nothing to resume from
    output = SelfHealingTrainer(saving_trainer(used, 6)).train(resume_from_checkpoint="auto")
    assert output.metrics["healing/recovery_attempts"] == 0
    told = read_postmortem(used / "postmortem.json")
    assert ([attempt["attempt"] for attempt in told.attempts], told.steps_lost) == ([2, 3], 0)


@pytest.mark.parametrize("resume", [False, "checkpoint-8"])
def test_a_run_returns_to_no_checkpoint_of_another_one_that_has_left_some_in_its_folder(resume, used):
    trainer = tiny_trainer(used, max_steps=12, save_strategy="steps", save_steps=100)
    spoil_a_weight_once(trainer)
    guarded = SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0))
    wanted = resume and str(used / resume)
    if wanted:
        guarded.train(resume_from_checkpoint=wanted)
    else:
        with pytest.raises(UnrecoverableError):
            guarded.train(resume_from_checkpoint=wanted)
    outcomes = [e.body for e in read_ledger(used / "healing" / "ledger.jsonl").entries if e.kind == "outcome"]
    returned = [Path(body["returns_to"]).name for body in outcomes[1:] if body.get("returns_to")]
    assert returned == (["checkpoint-4"] if wanted else []), (
        "with the second try of the same run, deeper: its past counts"
    )
    told = str(outcomes[1:])
    assert ("checkpoint-8: it was there when this training began" in told) is not bool(wanted)


def test_a_run_that_follows_one_that_was_killed_knows_what_that_one_had_spent(used):
    ledger = used / "healing" / "ledger.jsonl"
    ended = next(entry for entry in read_ledger(ledger).entries if entry.name == "run-ended")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[: ended.seq - 1]))  # as a kill leaves it
    output = SelfHealingTrainer(saving_trainer(used, 6)).train()
    assert output.metrics["healing/recovery_attempts"] == 1


def test_a_callback_starts_afresh_too_and_goes_on_where_it_resumes(used):
    def total(**how):
        callback = SelfHealingCallback()
        trainer = saving_trainer(used, 20)
        trainer.add_callback(callback)
        seen = []
        trainer.model.register_forward_hook(lambda *_: seen.append(callback._watched.desk.healer.memory.total))
        trainer.train(**how)
        return seen[0]

    assert total(resume_from_checkpoint=str(used / "checkpoint-16")) == 1
    assert total() == 0


def test_a_training_that_could_not_begin_leaves_the_folder_to_the_next_one(tmp_path):
    ledger = tmp_path / "healing" / "ledger.jsonl"
    ledger.mkdir(parents=True)  # where a file is expected
    with pytest.raises(LedgerError, match="ledger"):
        SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=2)).train()
    ledger.rmdir()
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=2)).train()
    assert [a["attempt"] for a in read_postmortem(tmp_path / "postmortem.json").attempts] == [1]


def test_a_callback_that_could_not_begin_leaves_the_folder_to_the_next_one(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=2, callbacks=[SelfHealingCallback()])
    trainer.args.weight_decay = "none"  # the trainer finds no fault with it until its optimizer does
    trainer.create_optimizer_and_scheduler = lambda num_training_steps: None
    with pytest.raises(ValueError, match="none"):
        trainer.train()
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=2)).train()


def train_on_a_bad_record(folder, steps=16, resume=None, fault="raising-record", **settings):
    trainer = saving_trainer(folder, steps)
    if fault is not None:
        FAULTS[fault]().plant(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(**settings)).train(resume_from_checkpoint=resume)
    return trainer, output


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    """A finished run that has left out a record, which cannot be read and so is known by its place."""
    folder = tmp_path_factory.mktemp("left-out")
    _, output = train_on_a_bad_record(folder)
    assert output.metrics["healing/records_left_out"] == 1
    return folder


@pytest.fixture
def with_a_list(left_out, tmp_path):
    return shutil.copytree(left_out, tmp_path / "used")


def notes(folder):
    return [entry.name for entry in read_ledger(folder / "healing" / "ledger.jsonl").entries if entry.kind == "note"]


@pytest.mark.parametrize("resume", [None, False])
def test_another_run_uses_what_an_earlier_one_has_left_out_and_keeps_its_list(resume, with_a_list, tmp_path):
    lines = (with_a_list / "healing" / "quarantine.jsonl").read_bytes()
    trainer, output = train_on_a_bad_record(with_a_list, resume=resume, fault=None)
    assert output.metrics["healing/records_left_out"] == 0
    stock = saving_trainer(tmp_path / "stock", 16)
    stock.train()
    assert weights(trainer).equal(weights(stock))
    assert (with_a_list / "healing" / "earlier_1_quarantine.jsonl").read_bytes() == lines
    assert not (with_a_list / "healing" / "quarantine.jsonl").exists()
    assert notes(with_a_list).count("quarantine-set-aside") == 1
    assert read_postmortem(with_a_list / "postmortem.json").data_quarantined == []


def test_a_resumed_run_says_how_many_records_its_list_leaves_out(with_a_list):
    _, output = train_on_a_bad_record(with_a_list, steps=20, resume="auto")
    assert output.metrics["healing/records_left_out"] == 1
    told = read_postmortem(with_a_list / "postmortem.json").data_quarantined
    assert [entry["attempt"] for entry in told] == [1, 2]
    assert told[1]["said"] == f"1 record left out by {with_a_list / 'healing' / 'quarantine.jsonl'}: 37"


def test_below_the_ceiling_recipe_no_list_replaces_anything(with_a_list):
    _, output = train_on_a_bad_record(with_a_list, steps=20, resume="auto", fault=None, max_effect="time")
    assert output.metrics["healing/records_left_out"] == 0
    assert "quarantine-not-honoured" in notes(with_a_list)
    assert "records-still-left-out" not in notes(with_a_list)
