"""When training is over nothing of ours holds on to the trainer, its model or its workers, not even in circles."""

from __future__ import annotations

import gc
import multiprocessing
import weakref

import pytest

from self_healing import HealingConfig, SelfHealingTrainer, healing
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import records, tiny_trainer

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
PARTS = {
    "TrainerSession", "TrainerGuard", "MakeUp", "TrainerAbilities", "RunDesk", "MemoryCare", "TrainerData", "RollbackCare",
    "RollbackAbilities", "StateKeeper", "RollbackLoop", "CheckpointCare",
}  # fmt: skip


@pytest.fixture
def no_collection():
    """Let only the counting of references free anything, as between two collections of circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_alive():
    return {id(found): found for found in gc.get_objects() if type(found).__name__ in PARTS}


@pytest.mark.parametrize("way", ["trainer", "block"])
def test_the_trainer_and_its_persistent_workers_go_when_the_user_lets_go_of_them(way, tmp_path, no_collection):
    trainer = tiny_trainer(tmp_path, max_steps=3, dataloader_num_workers=1, dataloader_persistent_workers=True)
    if way == "trainer":
        SelfHealingTrainer(trainer).train()
    else:
        with healing(trainer):
            trainer.train()
    loader = trainer.callback_handler.train_dataloader
    gone = [
        weakref.ref(thing) for thing in (trainer, trainer.model, getattr(loader, "base_dataloader", loader)._iterator)
    ]
    del trainer, loader
    assert [reference() for reference in gone] == [None, None, None]


@pytest.mark.parametrize("fault", [None, "nan-loss", "nan-record", "oom-once-in-backward", "raising-record"])
def test_whatever_happened_no_part_of_a_session_outlives_it(fault, tmp_path, no_collection):
    trainer = tiny_trainer(tmp_path, max_steps=12)
    if fault is not None:
        FAULTS[fault](at_step=5).plant(trainer)
    before = parts_alive()  # what an earlier test of this process still holds
    SelfHealingTrainer(trainer).train()
    assert [part for key, part in parts_alive().items() if key not in before] == []


def wrong_code(trainer):
    def fail(module, args, kwargs):
        if trainer.state.global_step == 3:
            raise NameError("wrong code")

    trainer.model.register_forward_pre_hook(fail, with_kwargs=True)


def bad_record_of_an_evaluation(trainer):
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 3
    rows = records(8, 3)
    trainer.eval_dataset = [*rows, {**rows[0], "input_ids": [999] * len(rows[0]["input_ids"])}]


@pytest.mark.parametrize("mode", ["heal", "advise"])
@pytest.mark.parametrize("spoil", [wrong_code, bad_record_of_an_evaluation])
def test_workers_and_all_parts_go_with_the_exception_that_ends_a_run(spoil, mode, tmp_path, no_collection):
    """Left to a collection of circles, workers are no longer told to end: five seconds are waited for each."""
    trainer = tiny_trainer(tmp_path, max_steps=12, dataloader_num_workers=1)
    spoil(trainer)
    workers, parts = set(multiprocessing.active_children()), parts_alive()
    raised = False
    try:
        SelfHealingTrainer(trainer, HealingConfig(mode=mode)).train()
    except Exception:  # let go of at once: what pytest offers would hold on to it
        raised = True
    assert raised
    assert set(multiprocessing.active_children()) <= workers
    assert [part for key, part in parts_alive().items() if key not in parts] == []


def test_workers_do_not_wait_for_whoever_keeps_the_exception(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=12, dataloader_num_workers=1)
    wrong_code(trainer)
    workers = set(multiprocessing.active_children())
    with pytest.raises(NameError) as kept:
        SelfHealingTrainer(trainer).train()
    assert set(multiprocessing.active_children()) <= workers
    assert kept.value.__traceback__ is not None
