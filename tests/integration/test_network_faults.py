"""The network fails for a while: the run waits where it must, and ends as if nothing had been."""

from __future__ import annotations

import pytest

from self_healing.adapters.data.hub_pushes import HubPushes
from self_healing.adapters.data.network import Retries
from self_healing.drills.tiny_training import LENGTH, records, tiny_trainer

from . import guarded_data, rehearsed
from .guarded_data import FAULTS, listed, same, train

pytestmark = pytest.mark.torch
done, quick_collections = guarded_data.done, rehearsed.quick_collections


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("timeouts", [(37, 200), (37, 37)], ids=["apart", "in-a-row"])
def test_two_timeouts_leave_no_trace_in_the_weights(timeouts, workers, done, tmp_path):
    trainer = tiny_trainer(tmp_path, dataloader_num_workers=workers)
    FAULTS["network-timeouts"](records=timeouts).plant(trainer)
    guard = train(trainer)
    assert same(trainer, done(None))
    assert [name for name, _ in guard.told] == ["network-retried"] * 2
    assert listed(tmp_path) == []


def test_a_server_that_stays_away_ends_the_run_and_is_not_held_against_the_records(tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS["network-timeouts"](records=(37,) * 9).plant(trainer)
    with pytest.raises(TimeoutError) as caught:
        train(trainer)
    assert "did not come back within 5 retries" in caught.value.__notes__[0]
    assert listed(tmp_path) == []


def pushed(folder, *, failures, look_after_it):
    trainer = tiny_trainer(folder, **FAULTS["hub-down"].needs)
    fault = FAULTS["hub-down"](failures=failures)
    fault.plant(trainer)
    told = []
    pushes = HubPushes(trainer, retries=Retries(base_s=0.05, most=3), tell=lambda name, _: told.append(name))
    if look_after_it:
        pushes.attach()
    try:
        trainer.train()
    finally:
        pushes.detach()
    return trainer, fault.hub.commits, told


def test_a_push_arrives_although_the_hub_was_down_and_training_does_not_notice(done, tmp_path):
    stock, commits, _ = pushed(tmp_path / "stock", failures=3, look_after_it=False)
    assert "Training in progress, step 60" not in commits, "what happens without us: it is lost without a word"
    trainer, commits, told = pushed(tmp_path / "ours", failures=3, look_after_it=True)
    assert commits[-1] == "Training in progress, step 60"
    assert told.count("network-retried") == 3
    assert same(trainer, done(None))
    assert same(trainer, stock)
    assert (
        not {"push_to_hub", "_push_from_checkpoint", "_finish_current_push", "get_batch_samples"} & vars(trainer).keys()
    )


def test_a_hub_that_stays_away_is_told_and_does_not_end_the_training(tmp_path):
    trainer, commits, told = pushed(tmp_path, failures=999, look_after_it=True)
    assert commits == []
    assert told[-1] == "push-given-up"
    assert trainer.state.global_step == 60


@pytest.mark.parametrize("error", [TimeoutError("lost"), ValueError("once")], ids=["network", "record"])
def test_a_repeated_reading_draws_the_same_random_numbers(error, tmp_path):
    import torch

    class Noisy:
        def __init__(self, failures):
            self.rows, self.failures = records(320, seed=2), failures

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            keep = torch.rand(LENGTH) > 0.2
            if index == 37 and self.failures:
                raise self.failures.pop()
            row = self.rows[index]
            return {**row, "labels": [t if k else -100 for t, k in zip(row["labels"], keep, strict=True)]}

    made = []
    for folder, failures in (("clean", []), ("failing", [error])):
        trainer = tiny_trainer(tmp_path / folder, max_steps=40)
        trainer.train_dataset = Noisy(failures)
        guard = train(trainer)
        made.append(trainer)
    assert len(guard.told) == 1
    assert same(*made)
