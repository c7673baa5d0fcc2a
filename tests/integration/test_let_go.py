"""When training is over nothing of ours holds on to the trainer, its model or its workers, not even in circles."""

from __future__ import annotations

import gc
import weakref

import pytest

from self_healing import SelfHealingTrainer, healing
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
PARTS = {"TrainerSession", "TrainerGuard", "MakeUp", "TrainerAbilities", "RunDesk", "MemoryCare", "TrainerData"}


@pytest.fixture
def no_collection():
    """Let only the counting of references free anything, as between two collections of circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_alive():
    return {type(found).__name__ for found in gc.get_objects()} & PARTS


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
    SelfHealingTrainer(trainer).train()
    assert parts_alive() == set()
