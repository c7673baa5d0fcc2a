"""Drills with harm that has reached weights, moments or checkpoints: only an earlier state helps."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from self_healing import ConfigError, SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.disk_faults import cut_short, flip_bit
from self_healing.drills.fault import Fault
from self_healing.drills.faults.poisoned_batches import Poisoning
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
    trainer = tiny_trainer(folder, logging_steps=1, **arguments)
    FAULTS[fault](**(options or {})).plant(trainer)
    return trainer


def notes(folder, name):
    """Return what the ledger says under a name."""
    entries = read_ledger(Path(folder) / "healing" / "ledger.jsonl").entries
    return [entry.body["text"] for entry in entries if entry.kind == "note" and entry.name == name]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), logging_steps=1)
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


@pytest.fixture(scope="module")
def without_batches(tmp_path_factory):
    """Stock runs of as many updates in which some batches never come."""
    import torch

    drawn = tiny_trainer(tmp_path_factory.mktemp("drawn"), max_steps=UPDATES + 10)
    batches = []
    drawn.model.register_forward_pre_hook(
        lambda module, args, batch: batches.append(batch["input_ids"].tolist()), with_kwargs=True
    )
    drawn.train()

    def get(left_out):
        kept = [batch for number, batch in enumerate(batches) if number not in left_out]
        rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids} for batch in kept for ids in batch]
        trainer = tiny_trainer(tmp_path_factory.mktemp("without"), logging_steps=1)
        trainer.train_dataset = rows
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(rows)
        trainer.train()
        return trainer

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


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_the_harm_begins_at_its_step(fault, clean, stock):
    """A rate is wrong from the first update on; harmed moments show in the loss one step later."""
    begins = {"learning-rate-too-high": 1, "moments-corrupted": 32}.get(fault, FAULTS[fault]().at_step)
    pairs = zip(losses(stock(fault)), losses(clean), strict=True)
    assert next(step for step, (ours, theirs) in enumerate(pairs) if ours != theirs) == begins


def test_poison_is_in_the_data_and_not_in_the_step():
    import torch

    poisoning = Poisoning(lambda rows: {"input_ids": torch.tensor(rows)}, range(2, 4), vocabulary=64)
    batches = [[[number] * 16] * 8 for number in range(6)]
    first = [poisoning(batch)["input_ids"].tolist() for batch in batches]
    assert [number for number in range(6) if first[number] != batches[number]] == [2, 3]
    assert first[2] != first[3]
    again = {number: poisoning(batches[number]) for number in (3, 0, 2, 5)}
    assert all(batch["input_ids"].tolist() == first[number] for number, batch in again.items())
    assert [number for number, batch in again.items() if poisoning.has_poisoned(batch)] == [3, 2]


def test_a_run_without_some_batches_is_else_a_run_as_any_other(clean, without_batches):
    assert bits(without_batches(())) == bits(clean)


# -- what lies on the disk -----------------------------------------------------------------------------

SAVING = {"save_strategy": "steps", "save_steps": 20}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Two checkpoints of a guarded run that did not come to its end; copied by whoever harms them."""
    folder = tmp_path_factory.mktemp("interrupted")
    trainer = tiny_trainer(folder, **SAVING)
    stop_after(trainer, 45)
    SelfHealingTrainer(trainer).train()
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-20", "checkpoint-40"]
    return folder


def stop_after(trainer, step):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == step

    trainer.add_callback(Stop())


HARM = {
    "bit-flipped": (lambda newest: flip_bit(newest / "model.safetensors"), "model.safetensors is damaged"),
    "truncated": (lambda newest: cut_short(newest / "model.safetensors"), "model.safetensors has"),
    "optimizer-missing": (lambda newest: (newest / "optimizer.pt").unlink(), "optimizer.pt is missing"),
}


@pytest.fixture(params=HARM)
def harmed(request, interrupted, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    harm, said = HARM[request.param]
    harm(folder / "checkpoint-40")
    return request.param, folder, said


def test_a_stock_trainer_resumes_from_what_is_harmed_or_dies_of_it(harmed, clean):
    harm, folder, _ = harmed
    trainer = tiny_trainer(folder, **SAVING)
    if harm == "truncated":
        with pytest.raises(Exception, match="Error while deserializing header"):
            trainer.train(resume_from_checkpoint=True)
        return
    trainer.train(resume_from_checkpoint=True)
    assert updates(trainer) == UPDATES - (40 if harm == "optimizer-missing" else 0)
    assert bits(trainer) != bits(clean)


def test_the_older_checkpoint_is_resumed_from_and_the_ledger_says_why(harmed, clean):
    _, folder, said = harmed
    trainer = tiny_trainer(folder, **SAVING)
    SelfHealingTrainer(trainer).train(resume_from_checkpoint="auto")
    (told,) = notes(folder, "resuming")
    assert told.startswith("checkpoint-20 is resumed from")
    assert f"passed over: checkpoint-40: {said}" in told
    assert updates(trainer) == UPDATES
    assert bits(trainer) == bits(clean)


def test_a_harmed_checkpoint_asked_for_by_name_is_a_clear_error(harmed):
    _, folder, said = harmed
    trainer = tiny_trainer(folder, **SAVING)
    with pytest.raises(ConfigError, match=said) as caught:
        SelfHealingTrainer(trainer).train(resume_from_checkpoint=str(folder / "checkpoint-40"))
    assert '"auto" for the newest usable one' in str(caught.value)
    assert trainer.state.global_step == 0
