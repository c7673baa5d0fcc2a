"""Drills with harm that has reached weights, moments or checkpoints: only an earlier state helps."""

from __future__ import annotations

import math
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from self_healing import ConfigError, HealingConfig, SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.disk_faults import CannotMountError, cut_short, flip_bit, read_only, small_disk
from self_healing.drills.fault import Fault
from self_healing.drills.faults.poisoned_batches import Poisoning
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, updates, weights
from self_healing.snapshots.checkpoint_check import check

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


def alerts(folder):
    """Return what a person is told about checkpoints that could not be written."""
    entries = [entry.body for entry in read_ledger(Path(folder) / "healing" / "ledger.jsonl").entries]
    return [body["because"] for body in entries if body.get("incident") == "save-failed" and "alert" in body["actions"]]


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

    drawn = tiny_trainer(tmp_path_factory.mktemp("drawn"), max_steps=UPDATES + 20)
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

ENDS_BROKEN = {"weight-nan", "flipped-bits"}
MAY_END_BROKEN = {"moments-corrupted"}
"""From there it depends on the processor's arithmetic whether the loss overflows or is a hundred thousand."""


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_a_stock_trainer_is_ruined_and_says_nothing(fault, clean, stock):
    trainer = stock(fault)
    assert updates(trainer) == UPDATES, "it went on to the end"
    harmed = eval_loss(trainer)
    assert math.isnan(harmed) is (fault in ENDS_BROKEN) or fault in MAY_END_BROKEN
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


# -- what the guard makes of them ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Guarded runs with a fault, trained once each: the trainer and the metrics."""
    done = {}

    def get(fault, *, every=None, **options):
        key = fault, every, *sorted(options.items())
        if key not in done:
            trainer = planted(fault, tmp_path_factory.mktemp("guarded"), options=options)
            config = HealingConfig(snapshot_every_steps=every)  # None: by the clock, as users have it
            done[key] = trainer, SelfHealingTrainer(trainer, config).train().metrics
        return done[key]

    return get


TRANSIENT = [name for name in ROLLED_BACK if FAULTS[name].is_transient]
OTHER_STEPS = (32, 47)
"""At a step before which a state is taken by default, and near the end of the run."""


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("fault", TRANSIENT)
def test_harm_that_came_once_leaves_no_trace(fault, every, clean, guarded):
    trainer, metrics = guarded(fault, every=every)
    assert updates(trainer) == trainer.state.global_step == UPDATES
    assert bits(trainer) == bits(clean)
    assert losses(trainer) == losses(clean)
    assert metrics["healing/rollbacks"] == 1, "an exact return settles it, so that nothing else is tried"


@pytest.mark.parametrize("at_step", OTHER_STEPS)
@pytest.mark.parametrize("fault", TRANSIENT)
def test_harm_that_came_once_is_undone_wherever_it_comes(fault, at_step, clean, guarded):
    """A state that was taken between the harm and its first sign may be sick itself, and another must be found."""
    trainer, metrics = guarded(fault, at_step=at_step)
    assert updates(trainer) == trainer.state.global_step == UPDATES
    assert eval_loss(trainer) <= 1.01 * eval_loss(clean)
    assert metrics["healing/rollbacks"] >= 1


@pytest.mark.parametrize("every", [None, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("factor", [3000.0, 1.0], ids=["loud", "noise-only"])
def test_poisoned_batches_are_left_out(factor, every, without_batches, guarded):
    trainer, metrics = guarded("poisoned-batches", every=every, factor=factor)
    assert updates(trainer) == trainer.state.global_step == UPDATES
    assert eval_loss(trainer) <= 1.01 * eval_loss(without_batches(range(25, 35)))
    assert metrics["healing/rollbacks"] >= 1


@pytest.mark.parametrize(("at_step", "count"), [(12, 10), (40, 10), (25, 20)])
def test_poisoned_batches_are_left_out_wherever_they_come(at_step, count, without_batches, guarded):
    """Before there is a level to compare with; from the start of an epoch on; more of them, across the end of one."""
    trainer, _ = guarded("poisoned-batches", at_step=at_step, count=count)
    assert updates(trainer) == trainer.state.global_step == UPDATES
    assert eval_loss(trainer) <= 1.01 * eval_loss(without_batches(range(at_step, at_step + count)))


def test_a_learning_rate_far_too_high_is_lowered_until_the_run_learns(clean, guarded):
    trainer, metrics = guarded("learning-rate-too-high")
    assert updates(trainer) == trainer.state.global_step == UPDATES
    assert eval_loss(trainer) <= 1.05 * eval_loss(clean)
    assert metrics["healing/rollbacks"] >= 1


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


@pytest.mark.parametrize(("fault", "guard"), [("weight-nan", False), ("attention-scaled", True)])
def test_a_checkpoint_written_while_the_run_was_sick_is_passed_over(fault, guard, clean, tmp_path):
    """Not finite, written by a stock Trainer; and finite, written under a guard that may not do anything about it."""
    sick = planted(fault, tmp_path, options={"at_step": 31}, **SAVING)
    stop_after(sick, 45)
    (SelfHealingTrainer(sick, HealingConfig(max_effect="nothing")) if guard else sick).train()
    assert (tmp_path / "checkpoint-40").is_dir()
    trainer = tiny_trainer(tmp_path, **SAVING)
    SelfHealingTrainer(trainer).train(resume_from_checkpoint="auto")
    (told,) = notes(tmp_path, "resuming")
    assert told.startswith("checkpoint-20 is resumed from")
    assert re.search("passed over: checkpoint-40: .*(marked sick|not finite)", told)
    assert bits(trainer) == bits(clean)


# -- disks that do not take what is written ------------------------------------------------------------


@pytest.fixture
def mounted():
    """Disks in the place of folders, for the time of a test; it is skipped where this process may not mount."""
    with ExitStack() as stack:

        def mount(disk):
            try:
                stack.enter_context(disk)
            except CannotMountError as why:
                pytest.skip(str(why))

        yield mount


def full(folder):
    return small_disk(folder / "checkpoint-40", 200_000)  # the weights fit, the optimizer's state does not


def forbidden(folder):
    (folder / "checkpoint-40").mkdir()
    return read_only(folder / "checkpoint-40")


UNWRITABLE = {"full": (full, "no space left|unexpected pos"), "read-only": (forbidden, "read-only file system")}


@pytest.mark.parametrize("disk", UNWRITABLE)
def test_a_stock_trainer_dies_of_a_checkpoint_it_cannot_write(disk, mounted, tmp_path):
    mounted(UNWRITABLE[disk][0](tmp_path))
    trainer = tiny_trainer(tmp_path, **SAVING)
    with pytest.raises(Exception, match=f"(?i){UNWRITABLE[disk][1]}"):
        trainer.train()
    assert updates(trainer) == 40


@pytest.mark.parametrize("disk", UNWRITABLE)
def test_a_checkpoint_that_cannot_be_written_costs_nothing_else(disk, mounted, clean, tmp_path):
    mounted(UNWRITABLE[disk][0](tmp_path))
    trainer = tiny_trainer(tmp_path, **SAVING)
    metrics = SelfHealingTrainer(trainer).train().metrics
    assert updates(trainer) == UPDATES
    assert bits(trainer) == bits(clean)
    assert metrics.get("healing/rollbacks", 0) == 0, "the weights are sound: no step has to be trained again"
    assert [step.name for step in sorted(tmp_path.glob("checkpoint-*")) if check(step).is_usable] == [
        "checkpoint-20", "checkpoint-60",
    ]  # fmt: skip
    (told,) = alerts(tmp_path)
    assert re.search(f"(?i)checkpoint of step 40 .*({UNWRITABLE[disk][1]})", told)


def test_where_the_whole_disk_is_full_the_run_goes_on_all_the_same(mounted, clean, tmp_path):
    """The ledger and the postmortem lie on it too."""
    mounted(small_disk(tmp_path / "run", 1_650_000))  # four checkpoints fit, of six
    ours = tmp_path / "run" / "healing"
    ours.mkdir(mode=0o700)
    for name in ("trace_3.json", "oom_1.pickle", "notes.json"):
        (ours / name).write_text("what a person could do without")
    trainer = tiny_trainer(tmp_path / "run", save_strategy="steps", save_steps=10)
    metrics = SelfHealingTrainer(trainer).train().metrics
    assert updates(trainer) == UPDATES
    assert bits(trainer) == bits(clean)
    assert metrics.get("healing/rollbacks", 0) == 0
    written = sorted((tmp_path / "run").glob("checkpoint-*"))
    assert [path.name for path in written] == ["checkpoint-10", "checkpoint-20", "checkpoint-30", "checkpoint-40"]
    assert all(check(path).is_usable for path in written), (
        "what was half written is gone, and makes room for the ledger"
    )
    assert len(alerts(tmp_path / "run")) == 2
    left = {path.name for path in ours.iterdir()} & {"trace_3.json", "oom_1.pickle", "notes.json"}
    assert left == {"notes.json"}, "what was written to be looked at is given up for a checkpoint, and nothing else"
