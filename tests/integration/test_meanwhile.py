"""Looks during the backward pass: in order, raised where they fail, and never in the way of anything else."""

from __future__ import annotations

import copy
import threading

import pytest

from self_healing import HealingConfig
from self_healing.adapters.trainer.meanwhile import Meanwhile
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import same

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


@pytest.fixture
def watched():
    """A meanwhile that remembers what it looked at and in which thread; multiples of ten are wishes."""
    looked = []

    def look(seen):
        looked.append((seen, threading.current_thread().name))
        if seen < 0:
            raise ValueError(f"cannot look at {seen}")
        return seen if seen % 10 == 0 else None

    meanwhile = Meanwhile(look)
    meanwhile.looked = looked
    yield meanwhile
    meanwhile.close()


def backward(meanwhile):
    meanwhile.around_backward(lambda: None)()


def settled(meanwhile):
    found = []
    while (answer := meanwhile.next_wish())[0]:
        found.append(answer[1])
    return found


def test_observations_are_looked_at_in_their_order_and_in_the_other_thread(watched):
    for seen in (1, 2, 3):
        watched.add(seen)
    backward(watched)
    assert settled(watched) == [None, None, None]
    assert watched.looked == [(seen, "self-healing-look") for seen in (1, 2, 3)]


def test_without_a_backward_pass_they_are_looked_at_when_they_are_needed(watched):
    watched.add(1)
    assert settled(watched) == [None]
    assert watched.looked == [(1, threading.current_thread().name)]


def test_nothing_is_looked_at_before_an_earlier_wish_was_carried_out(watched):
    for seen in (10, 1, 20):
        watched.add(seen)
    for _ in range(4):  # a step has as many backward passes as micro-batches
        backward(watched)
        watched.wait()
    assert [seen for seen, _ in watched.looked] == [10]
    assert watched.next_wish() == (True, 10)
    assert [seen for seen, _ in watched.looked] == [10], "what follows is looked at after it was carried out"
    assert settled(watched) == [None, 20]


def test_an_exception_is_raised_on_the_training_thread_once_and_what_follows_still_comes(watched):
    for seen in (1, -1, 2):
        watched.add(seen)
    backward(watched)
    watched.wait()
    backward(watched)
    with pytest.raises(ValueError, match="cannot look at -1"):
        settled(watched)
    assert settled(watched) == [None, None]
    assert [seen for seen, _ in watched.looked] == [1, -1, 2]


def test_it_can_be_closed_with_something_pending_and_used_again(watched):
    watched.add(1)
    backward(watched)
    watched.add(2)
    watched.close()
    watched.close()
    backward(watched)
    assert settled(watched) == [None, None]
    watched.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "self-healing-look"]


# -- in a training -------------------------------------------------------------------------------------


def steps_looked_at(folder):
    entries = read_ledger(folder / "healing/ledger.jsonl").entries
    return [e.step for e in entries if e.kind == "signal" and e.name == "metrics" and "loss" in e.body["values"]]


def looking_threads():
    return [thread for thread in threading.enumerate() if thread.name == "self-healing-look"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), max_steps=12)
    trainer.train()
    return trainer


def stopping_with(error, at_step):
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == at_step:
                raise error

    return Stopping()


@pytest.mark.parametrize("error", [NameError("mine"), KeyboardInterrupt()])
def test_a_run_that_ends_by_an_exception_loses_no_observation_and_leaves_no_thread(error, tmp_path):
    trainer = tiny_trainer(tmp_path, callbacks=[stopping_with(error, 7)], logging_steps=100)
    with pytest.raises(type(error)):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()
    assert steps_looked_at(tmp_path) == list(range(1, 8))
    assert looking_threads() == []


def test_a_trainer_that_is_copied_in_the_middle_goes_on(clean, tmp_path):
    from transformers import TrainerCallback

    copies = []

    class Copying(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                copies.append(copy.deepcopy(trainer))

    trainer = tiny_trainer(tmp_path, max_steps=12, callbacks=[Copying()])
    SelfHealingTrainer(trainer).train()
    assert same(trainer, clean)
    assert len(copies) == 1
    assert not same(copies[0], trainer), "a state of its own"


def test_two_trainings_one_inside_the_other_do_not_disturb_each_other(clean, tmp_path):
    from transformers import TrainerCallback

    class Nesting(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                SelfHealingTrainer(inner).train()

    outer = tiny_trainer(tmp_path / "outer", max_steps=12, callbacks=[Nesting()])
    inner = tiny_trainer(tmp_path / "inner", max_steps=12)
    FAULTS["nan-loss"](at_step=5).plant(inner)
    SelfHealingTrainer(outer).train()
    assert same(inner, clean)
    assert outer.state.global_step == inner.state.global_step == 12
    for name in ("outer", "inner"):
        assert steps_looked_at(tmp_path / name) == sorted(steps_looked_at(tmp_path / name))
    assert looking_threads() == []


def test_data_workers_can_be_forked_while_the_thread_is_there(clean, tmp_path):
    """Three epochs: workers are forked anew for each, the later ones beside the thread."""
    made = []
    for workers in (0, 2):
        trainer = tiny_trainer(
            tmp_path / str(workers), max_steps=-1, num_train_epochs=3, dataloader_num_workers=workers
        )
        trainer.train_dataset = trainer.train_dataset[:40]
        SelfHealingTrainer(trainer).train()
        assert trainer.state.global_step == 15
        made.append(trainer)
    assert same(*made)
