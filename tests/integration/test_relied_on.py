"""The old and the new end of the range, and a trainer that lacks a name: said once, and the run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import self_healing.adapters
from self_healing.adapters.relied_on import ONLY_MEASURED, RELIED_ON, installed, missing_names
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import records, tiny_model, tiny_trainer
from self_healing.drills.trained import weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
ADAPTERS = Path(self_healing.adapters.__file__).parent
STEPS = 12


def gone(name):
    """Return what makes an attribute of a class absent on its instances until training runs."""

    def get(self):
        if self.__dict__.get("is_in_train"):
            return self.__dict__.get(name, getattr(super(type(self), self), name))
        raise AttributeError(name)

    return property(get)


def lacking(folder, name, **members):
    """Return a trainer of a version in which `name` is not there when the guard looks for it."""
    from transformers import Trainer

    stock = tiny_trainer(folder, max_steps=STEPS, logging_steps=4)
    kind = type("Renamed", (Trainer,), {name: gone(name), **members})
    return kind(model=tiny_model(), args=stock.args, train_dataset=records(320, seed=2))


def notes(folder):
    return [
        e.body["text"] for e in read_ledger(folder / "healing" / "ledger.jsonl").entries if e.name == "name-missing"
    ]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), max_steps=STEPS, logging_steps=4)
    trainer.train()
    return trainer


def test_the_installed_versions_have_every_name(tmp_path):
    assert missing_names(tiny_trainer(tmp_path, max_steps=1)) == []


def test_every_private_name_the_adapter_uses_is_in_the_table():
    private = re.compile(
        r"(?:trainer|accelerator|gradient_state)\.(_[a-z]\w*)|wrap\([\w.]+, \"(_\w+)\"|\"(_\w+)\", self\."
    )
    used = set()
    for path in ADAPTERS.rglob("*.py"):
        used |= {next(filter(None, groups)) for groups in private.findall(path.read_text())}
    assert {"_prepare_inputs", "_set_sync_gradients", "_save_checkpoint", "_maybe_log_save_evaluate"} <= used
    asked_for_before_it_is_used = {
        "_tr_loss",
        "_clip_grad_norm",
        "_calculate_rewards",
        "_total_train_tokens",
        "_do_sync",
        "_sync_buffers",  # of torch's DistributedDataParallel
    }
    returning = {"_run_epoch", "_load_rng_state"}  # which is done only where `_run_epoch` is as known
    assert used - {needed.name for needed in RELIED_ON} == asked_for_before_it_is_used | returning


def test_a_missing_name_is_told_with_the_version_and_what_is_done_instead(tmp_path, caplog):
    trainer = lacking(tmp_path, "_prepare_inputs")
    SelfHealingTrainer(trainer).train()
    (text,) = notes(tmp_path)
    assert f"transformers {installed('transformers')}" in text
    assert "trainer._prepare_inputs" in text
    assert "inputs are prepared anew" in text
    assert "\n" not in text
    assert [record.levelname for record in caplog.records if record.getMessage() == text] == ["WARNING"]


def test_without_prepared_inputs_a_transient_fault_still_leaves_no_trace(clean, tmp_path):
    trainer = lacking(tmp_path, "_prepare_inputs")
    FAULTS["nan-loss"](at_step=5).plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/made_up_steps"] == 1
    assert weights(trainer).equal(weights(clean))


@pytest.mark.parametrize("name", ["get_batch_samples", "training_step"])
def test_without_an_essential_name_the_run_is_only_watched(name, clean, tmp_path):
    trainer = lacking(tmp_path, name)
    FAULTS["nan-loss"](at_step=5).plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert ONLY_MEASURED in notes(tmp_path)[0]
    assert output.metrics["healing/made_up_steps"] == 0
    assert not weights(trainer).isfinite().all(), "as in a stock run"
    assert trainer.state.global_step == STEPS


def test_a_name_that_takes_other_arguments_is_as_good_as_missing(tmp_path):
    def training_step(self, *, model, inputs):
        raise AssertionError("never called")

    trainer = lacking(tmp_path, "_unused", training_step=training_step)
    assert [needed.name for needed in missing_names(trainer)] == ["training_step"]


def test_without_a_way_to_save_the_emergency_is_told_so(tmp_path):
    trainer = lacking(tmp_path, "_save_checkpoint")

    def fail(module, args, output):
        if trainer.state.global_step == 3:
            raise KeyError("mine")

    trainer.model.register_forward_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer).train()
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    told = [e.body["text"] for e in entries if e.name == "emergency"]
    assert told == ["no emergency checkpoint: this trainer has no _save_checkpoint"]


def test_without_the_hand_over_the_weights_are_exact_all_the_same(clean, tmp_path):
    trainer = lacking(tmp_path, "_maybe_log_save_evaluate")
    FAULTS["nan-loss"](at_step=5).plant(trainer)
    SelfHealingTrainer(trainer).train()
    assert weights(trainer).equal(weights(clean))
    assert "logged mean loss" in notes(tmp_path)[0]


def test_what_is_done_without_a_name_is_said_for_each():
    assert all(needed.needed_for.startswith("to ") and needed.without for needed in RELIED_ON)
    assert len({needed.path for needed in RELIED_ON}) == len(RELIED_ON)
