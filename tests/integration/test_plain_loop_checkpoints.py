"""What checkpoints a loop of one's own leaves when it is left, and which of them it can go on from."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from self_healing import guard
from self_healing.adapters.plain_loop.checkpoints import write_checkpoint
from self_healing.adapters.plain_loop.stand_in import LoopStandIn, StandInAccelerator, StandInArgs
from self_healing.core.errors import ConfigError
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import FILE_NAME, describe, read_manifest, write_manifest
from self_healing.snapshots.resume import choose
from self_healing.snapshots.verdicts import Condition, StateVerdict
from self_healing.tensors.random_state import RandomState

from .plain_loops import make, notes, settings, weight_nan

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
ON_DISK = settings(shared_memory=False)


def left_after(steps, run_dir, *, each=None, **more):
    """Train a loop that is left by `break`; return its network."""
    loop = make(norm=False)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=ON_DISK, run_dir=run_dir, **more) as run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                s.backward(loop.loss_fn, batch)
            if each is not None:
                each(run, loop.net)
            if run.step_number >= steps:
                break
    return loop.net


def verdicts(folder):
    """Return what the manifests of all checkpoints say."""
    return {path.name: read_manifest(path).verdict.condition.value for path in sorted(folder.glob("checkpoint-*"))}


def test_a_checkpoint_that_is_due_when_the_loop_is_left_is_written_and_gone_on_from(tmp_path):
    left_after(6, tmp_path, save_every=3)
    assert verdicts(tmp_path) == {"checkpoint-3": "intact", "checkpoint-6": "intact"}
    began = []
    left_after(7, tmp_path, resume="auto", each=lambda run, _net: began.append(run.step_number))
    assert began == [], "what was left is not gone on with: the loop has no second epoch"


def test_what_was_counted_is_not_handed_on_to_a_checkpoint_that_a_loop_writes_without_a_guard(tmp_path, monkeypatch):
    newest = tmp_path / "checkpoint-6"
    left_after(6, tmp_path, save_every=3)
    left_after(6, tmp_path, save_every=3)
    assert (newest / "healing_state.json").exists()
    monkeypatch.setenv("SELF_HEALING", "off")
    left_after(7, tmp_path, save_every=3)
    assert {path.name for path in newest.iterdir()} & {"healing_state.json", FILE_NAME} == set()
    assert choose(tmp_path).path == newest


class Custom:
    """What is more than a plain value."""


def damage(folder, how):
    """Harm a checkpoint in what torch and json would say in words of their own."""
    if how == "place":
        (folder / "healing_place.json").write_text("{")
    elif how == "random":
        (folder / "rng_state.pth").unlink()
    else:
        torch.save({"state": Custom()}, folder / "optimizer.pt")


DAMAGED = {
    "place": "healing_place.json is damaged",
    "random": "rng_state.pth is missing",
    "optimizer": "optimizer.pt was not unpickled, for it holds more than tensors and plain values",
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_checkpoint_without_a_manifest_is_passed_over_and_refused_by_name(how, tmp_path):
    left_after(6, tmp_path, save_every=3)
    newest = tmp_path / "checkpoint-6"
    damage(newest, how)
    (newest / FILE_NAME).unlink()
    with pytest.raises(ConfigError, match=re.escape(DAMAGED[how])):
        left_after(7, tmp_path, resume=str(newest))
    began = []
    left_after(7, tmp_path, resume="auto", each=lambda run, _net: began.append(run.step_number))
    assert began[0] == 4
    assert DAMAGED[how] in notes(tmp_path, "resuming")[-1]


def test_what_torch_refuses_to_load_is_said_in_our_words_where_it_was_written_so(tmp_path):
    left_after(6, tmp_path, save_every=3)
    newest = tmp_path / "checkpoint-6"
    damage(newest, "optimizer")
    write_manifest(newest, describe(newest, read_manifest(newest).verdict))
    with pytest.raises(ConfigError, match=rf"{re.escape(DAMAGED['optimizer'])}.* Name another") as told:
        left_after(7, tmp_path, resume="auto")
    assert "weights_only" not in str(told.value)


class Kept:
    """Something of the user's that is saved with the loop."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def test_numbers_of_numpy_are_loaded_again(tmp_path):
    """A rate that comes from an array is one of them, and all checkpoints of such a loop were refused."""

    def sets_rate(run, _net):
        for group in run._session.trainer.optimizer.param_groups:
            group["lr"] = np.linspace(1e-2, 1e-3, 20)[run.step_number]

    left_after(6, tmp_path, save_every=3, each=sets_rate, also=(Kept({"best": np.float32(0.5), "all": np.arange(3)}),))
    assert notes(tmp_path, "cannot-be-resumed") == []
    kept = Kept(None)
    left_after(7, tmp_path, resume=str(tmp_path / "checkpoint-3"), also=(kept,))
    assert kept.value["best"] == np.float32(0.5)


def test_the_first_checkpoint_that_nothing_could_go_on_from_is_told_of_at_once(tmp_path):
    left_after(6, tmp_path, save_every=3, also=(Kept(Custom()),))
    (told,) = notes(tmp_path, "cannot-be-resumed")
    assert told.startswith("checkpoint-3 is written and cannot be resumed from")
    assert "also.pt was not unpickled, for it holds more than tensors and plain values" in told
    with pytest.raises(ConfigError, match=r"also\.pt was not unpickled"):
        left_after(7, tmp_path, resume="auto", also=(Kept(None),))


def test_a_checkpoint_of_broken_weights_is_written_where_it_is_asked_for_and_else_not(tmp_path):
    def breaks(run, net):
        if run.step_number == 2 and not said:  # once: it is returned from
            weight_nan(net)
            said.append(run.save_checkpoint())
        elif run.step_number == 6:
            weight_nan(net)

    said = []
    left_after(6, tmp_path, save_every=3, each=breaks)
    assert said == ['checkpoint-2 was written as it is: its weights are not finite, so that "auto" passes over it']
    assert verdicts(tmp_path) == {"checkpoint-2": "sick", "checkpoint-3": "intact"}
    chosen = choose(tmp_path, 3)
    assert chosen.path is None
    assert "it is marked sick" in str(chosen)


def test_a_sick_checkpoint_of_a_loop_has_its_mark_from_the_moment_it_has_its_name(tmp_path):
    """A kill may come before anything else is said of it."""
    loop, accelerator = make(), StandInAccelerator(None, "NO", 1)
    args = StandInArgs(str(tmp_path), torch.device("cpu"), 1.0, 1)
    stand_in = LoopStandIn(loop.net, loop.optimizer, loop.scheduler, accelerator, args)
    stand_in.state.global_step = 5
    folder, tier = tmp_path / "checkpoint-5", DiskTier()
    tier.marked_first(folder, StateVerdict(Condition.SICK, "loss-spike began at step 4"))
    write_checkpoint(stand_in, folder, None, RandomState.capture(), [])
    assert [choose(tmp_path).path, *verdicts(tmp_path).values()] == [None, "sick"]

    write_checkpoint(stand_in, folder, None, RandomState.capture(), [])  # the run comes by it once more, and is well
    assert choose(tmp_path).path == folder
