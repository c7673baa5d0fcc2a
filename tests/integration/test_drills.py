"""Drills through the public trainer: what kills runs most often is healed in place, and what is not says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.drills.trained import losses, same, updates, weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
ONCE = {"gradient_accumulation_steps": 1, "max_steps": 60}
FOUR = {"gradient_accumulation_steps": 4, "max_steps": 24, "per_device_train_batch_size": 4}
AT = {1: 20, 4: 9}


def eval_loss(trainer):
    """Evaluate the weights alone, without the hooks by which faults are planted."""
    fresh = tiny_trainer(trainer.args.output_dir)
    fresh.model.load_state_dict(trainer.model.state_dict())
    return fresh.evaluate()["eval_loss"]


def postmortem(folder):
    return json.loads(Path(folder, "postmortem.json").read_text())


def quarantined(folder):
    path = Path(folder, "healing/quarantine.jsonl")
    return path.read_bytes() if path.exists() else b""


def run(folder, fault=None, *, config=None, resume=None, model=None, **arguments):
    """Train through the public class; return the trainer and the metrics."""
    trainer = tiny_trainer(folder, model=model, **arguments)
    if fault is not None:
        fault.plant(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(**(config or {}))).train(resume_from_checkpoint=resume)
    return trainer, output.metrics


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs without any fault, trained once each."""
    done = {}

    def get(**arguments):
        key = tuple(sorted(arguments.items()))
        if key not in done:
            done[key] = tiny_trainer(tmp_path_factory.mktemp("clean"), **arguments)
            done[key].train()
        return done[key]

    return get


@pytest.mark.parametrize("settings", [ONCE, FOUR], ids=["accumulation-1", "accumulation-4"])
@pytest.mark.parametrize("fault", ["oom-once-in-forward", "oom-once-in-backward"])
def test_memory_that_ran_out_once_leaves_no_trace(fault, settings, clean, tmp_path):
    at = AT[settings["gradient_accumulation_steps"]]
    trainer, metrics = run(tmp_path, FAULTS[fault](at_step=at), **settings)
    without = clean(**settings)
    assert same(trainer, without)
    assert losses(trainer) == losses(without)
    assert updates(trainer) == settings["max_steps"]
    assert metrics["healing/out_of_memory"] == 1
    assert metrics["healing/extra_forwards"] == 1, "the micro-batch that failed, and nothing else"


@pytest.mark.parametrize("settings", [ONCE, FOUR], ids=["accumulation-1", "accumulation-4"])
def test_batches_that_never_fit_are_trained_on_in_pieces(settings, clean, tmp_path):
    accumulation = settings["gradient_accumulation_steps"]
    at = AT[accumulation]
    trainer, metrics = run(tmp_path, FAULTS["oom-above-two-rows"](at_step=at), **settings)
    assert updates(trainer) == settings["max_steps"]
    assert eval_loss(trainer) <= 1.01 * eval_loss(clean(**settings))
    micro_batches = accumulation * (settings["max_steps"] - at)
    assert 2 <= metrics["healing/extra_forwards"] <= 2 + micro_batches / 4, "what helped is remembered"
    assert (weights(trainer) - weights(clean(**settings))).abs().max() < 1e-3, "the same steps but for rounding"


BAD_RECORD = {"raising-record": 37, "wrong-shape-record": 41, "collator-record": 50}


@pytest.fixture(scope="module")
def healed(tmp_path_factory):
    """Healed runs by fault and number of workers, trained once each."""
    done = {}

    def get(fault, workers):
        if (fault, workers) not in done:
            settings = {"dataloader_num_workers": workers, "save_strategy": "steps", "save_steps": 40}
            done[fault, workers] = run(tmp_path_factory.mktemp("healed"), FAULTS[fault](), **settings)
        return done[fault, workers]

    return get


@pytest.mark.parametrize(("fault", "workers"), [*((name, 0) for name in BAD_RECORD), ("raising-record", 2)])
def test_a_bad_record_costs_no_update_and_no_pass(fault, workers, healed, clean):
    trainer, metrics = healed(fault, workers)
    assert updates(trainer) == 60
    assert eval_loss(trainer) <= 1.01 * eval_loss(clean(**ONCE))
    assert metrics["healing/records_left_out"] == 1
    assert metrics.get("healing/extra_forwards", 0) == 0
    listed = [json.loads(line) for line in quarantined(trainer.args.output_dir).splitlines()]
    assert [(line["index"], line["replaced_by"]) for line in listed] == [(BAD_RECORD[fault], BAD_RECORD[fault] + 1)]


def test_two_runs_and_another_number_of_workers_write_the_same_list_and_weights(healed, tmp_path):
    first, _ = healed("raising-record", 0)
    again, _ = run(tmp_path, FAULTS["raising-record"]())
    other, _ = healed("raising-record", 2)
    lists = {quarantined(trainer.args.output_dir) for trainer in (first, again, other)}
    assert len(lists) == 1
    assert lists != {b""}
    assert same(first, again)
    assert same(first, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_list_is_honoured_after_a_resume_with_another_number_of_workers(workers, healed, tmp_path):
    """The checkpoint is from the second epoch; the record was found in the first."""
    import shutil

    first, _ = healed("raising-record", 2 - workers)
    folder = tmp_path / "resumed"
    shutil.copytree(first.args.output_dir, folder)
    shutil.rmtree(folder / "checkpoint-60")
    before = quarantined(folder)
    trainer, metrics = run(
        folder, FAULTS["raising-record"](), resume=str(folder / "checkpoint-40"), model=tiny_model(seed=9),
        dataloader_num_workers=workers,
    )  # fmt: skip
    assert metrics["healing/records_left_out"] == 1, "the one that is known"
    assert quarantined(folder) == before != b""
    assert same(trainer, first), "as if it had never been interrupted"


@pytest.mark.parametrize(("fault", "retries"), [("network-timeouts", 2), ("hub-down", 1)])
def test_the_network_comes_back_and_nothing_is_lost(fault, retries, clean, tmp_path):
    needs = dict(FAULTS[fault].needs)
    trainer, metrics = run(tmp_path, FAULTS[fault](), **needs)
    assert same(trainer, clean(**needs))
    assert losses(trainer) == losses(clean(**needs))
    assert updates(trainer) == 60
    assert metrics["healing/network_retries"] == retries
    assert metrics.get("healing/extra_forwards", 0) == 0


# -- what the postmortem says --------------------------------------------------------------------------

AT_ONCE = ("step-not-finite", "out-of-memory", "bad-record", "network-error")
OOM_ONCE = ("oom", ["clear_cache"])
TOLD = {
    "nan-loss": [("nan_loss", ["skip_step"])],
    "infinite-gradient": [("nan_loss", ["skip_step"])],
    "nan-record": [("nan_loss", ["skip_step", "skip_batch"])],
    "oom-once-in-forward": [OOM_ONCE],
    "oom-once-in-backward": [OOM_ONCE],
    "oom-above-two-rows": [("oom", ["clear_cache", "split_micro_batch"])],
    "raising-record": [("data_error", ["quarantine_records"])],
    "wrong-shape-record": [("data_error", ["quarantine_records"])],
    "collator-record": [("data_error", ["quarantine_records"])],
    "network-timeouts": [("api_error", ["backoff"]), ("api_error", ["backoff"])],
    "hub-down": [("api_error", ["backoff"])],
}


@pytest.mark.parametrize("fault", TOLD)
def test_the_postmortem_lists_what_was_done_at_once(fault, tmp_path):
    planted = FAULTS[fault](at_step=5)
    run(tmp_path, planted, max_steps=40, **planted.needs)
    told = postmortem(tmp_path)
    reflexes = [entry for entry in told["recovery_actions"] if entry["incident"] in AT_ONCE]
    if fault == "nan-record":  # some records of the tiny data are equal to it
        reflexes = reflexes[:1]
    assert [(entry["failure"], entry["actions"]) for entry in reflexes] == TOLD[fault]
    assert {entry["verdict"] for entry in reflexes} == {"recovered"}
    assert all(entry["diagnosis"] and entry["said"] and entry["outcome"] == "done" for entry in reflexes)
    assert told["exit_reason"] == "completed"
    assert len(told["data_quarantined"]) == fault.endswith("-record") - (fault == "nan-record")


def test_checkpointing_is_named_where_it_is_what_helped(tmp_path):
    """Memory runs out in every pass that keeps the activations of its layers."""
    import torch

    trainer = tiny_trainer(tmp_path, max_steps=12)

    def spoil(module, args, kwargs, output):
        layers = trainer.model.model.layers
        if module.training and trainer.state.global_step >= 5 and not layers[0].gradient_checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.register_forward_hook(spoil, with_kwargs=True)
    SelfHealingTrainer(trainer).train()
    (told,) = [entry for entry in postmortem(tmp_path)["recovery_actions"] if entry["failure"] == "oom"]
    assert told["actions"] == ["clear_cache", "enable_gradient_checkpointing"]
    stock = tiny_trainer(tmp_path / "stock", max_steps=12)
    stock.train()
    assert same(trainer, stock), "checkpointing gives the same gradients to the bit"


# -- no record's fault ---------------------------------------------------------------------------------


def beyond_the_vocabulary(trainer, at_step):
    def spoil(module, args, kwargs):
        if module.training and trainer.state.global_step >= at_step:
            kwargs["input_ids"] = kwargs["input_ids"] + 64
        return args, kwargs

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)


def raising(error):
    def plant(trainer, at_step):
        def spoil(module, args):
            if module.training and trainer.state.global_step >= at_step:
                raise error

        trainer.model.register_forward_pre_hook(spoil)

    return plant


def broken_collator(trainer, at_step):
    trainer.data_collator = lambda rows: {"x": [row["no such column"] for row in rows]}


BUGS = {
    "index-error": (beyond_the_vocabulary, IndexError, 0),
    "index-error-later": (beyond_the_vocabulary, IndexError, 12),
    "shape": (raising(RuntimeError("shape")), RuntimeError, 0),
    "looks-like-a-batch": (raising(ValueError("expected sequence of length 16 at dim 1 (got 8)")), ValueError, 12),
    "key-error-in-the-collator": (broken_collator, KeyError, 0),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_looks_like_bad_data_stops_at_once_and_is_called_one(bug, tmp_path):
    plant, expected, at_step = BUGS[bug]
    trainer = tiny_trainer(tmp_path, save_strategy="steps", save_steps=5, remove_unused_columns=False)
    plant(trainer, at_step)
    with pytest.raises(expected) as caught:
        SelfHealingTrainer(trainer).train()
    assert any("not the records" in note for note in caught.value.__notes__)
    assert trainer.state.global_step == at_step
    assert quarantined(tmp_path) == b""
    entries = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    (diagnosis,) = [entry.body for entry in entries if entry.kind == "diagnosis"]
    assert diagnosis["hypotheses"][0]["name"] == "fails-whatever-the-data"
    assert [entry.body["rung"] for entry in entries if entry.kind == "plan"] == ["stop-run"], "no second attempt"
    told = postmortem(tmp_path)
    (stop,) = told["recovery_actions"]
    assert (stop["failure"], stop["actions"]) == ("crash", ["stop"])
    assert "no record is to blame" in stop["diagnosis"]
    assert told["data_quarantined"] == []
    assert "Correct the code" in told["advice"][0]


def test_a_batch_that_fails_alone_is_not_called_a_bug_of_the_model(tmp_path):
    trainer = tiny_trainer(tmp_path)
    marked = []

    def spoil(module, args, kwargs):
        ids = kwargs["input_ids"]
        if trainer.state.global_step == 12 and not marked:
            marked.append(ids.clone())
        if marked and ids.shape == marked[0].shape and bool((ids == marked[0]).all()):
            raise IndexError("index out of range in self")

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    output = SelfHealingTrainer(trainer).train()
    assert updates(trainer) == trainer.state.global_step == 60
    assert output.metrics["healing/rollbacks"] == 1
    (skipped,) = postmortem(tmp_path)["recovery_actions"]
    assert skipped["failure"] == "data_error"
    assert skipped["actions"] == ["skip_batch"]
    assert skipped["steps_lost"] == output.metrics["healing/steps_lost"]
