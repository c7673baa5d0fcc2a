"""States of a real training in the real shared memory: there after a kill, gone after success, never in the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.snapshots.shared_folder import run_name
from self_healing.snapshots.shared_reader import PublishedState, read_states
from self_healing.snapshots.verdicts import Condition

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

EVERY = {"snapshot_every_steps": 4, "good_after": 4}
SCRIPT = """
import os, signal, sys, time
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
trainer = tiny_trainer(sys.argv[1], max_steps=30)
def kill(*_):
    if trainer.state.global_step == 14:
        time.sleep(1.0)  # the index is written by another thread
        os.kill(os.getpid(), signal.SIGKILL)
trainer.model.register_forward_hook(kill)
SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=4, good_after=4)).train()
"""


@pytest.fixture(autouse=True)
def nothing_before(own_shared_memory):
    if own_shared_memory is None:
        pytest.skip("there is no shared memory here")
    yield
    assert list(own_shared_memory.iterdir()) == []


def states_of(folder):
    return read_states(run_name(folder))


def callback(**methods):
    from transformers import TrainerCallback

    return type("Watching", (TrainerCallback,), methods)()


def everything(trainer):
    """Return weights and moments by the names they have in a state, and what the random generators would draw."""
    import torch

    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    tensors = dict(trainer.model.named_parameters())
    for parameter, state in trainer.optimizer.state.items():
        tensors |= {f"optimizer.{key}/{names[parameter]}": value for key, value in state.items()}
    tensors["generator"] = torch.get_rng_state()
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def recording(kept, steps=()):
    """Keep everything as it is before some steps, or at the end."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step in steps:
            kept[state.global_step] = everything(kept["trainer"])

    def on_train_end(self, args, state, control, **kwargs):
        kept["end"] = everything(kept["trainer"])

    return callback(on_step_begin=on_step_begin, on_train_end=on_train_end)


def train_stock(folder, steps, until=30):
    kept = {}
    trainer = kept["trainer"] = tiny_trainer(folder, max_steps=until)
    trainer.add_callback(recording(kept, steps))
    trainer.train()
    return kept


def assert_same(state, expected):
    import torch

    from self_healing.tensors.random_state import from_text
    from self_healing.tensors.shared_tensors import read_tensor

    generator = from_text(state.index.state["random"]["cpu"])
    assert torch.equal(generator, expected["generator"])
    for name, tensor in expected.items():
        assert name == "generator" or torch.equal(read_tensor(state, name), tensor), name


def test_a_killed_training_leaves_the_newest_and_the_newest_good_state_and_the_next_one_cleans_up(tmp_path):
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    newest, good = states_of(tmp_path)
    assert (newest.step, newest.index.verdict.condition) == (12, Condition.INTACT)
    assert (good.step, good.index.verdict.condition) == (8, Condition.GOOD)
    expected = train_stock(tmp_path / "stock", {8, 12})
    for state in (newest, good):
        assert_same(state, expected[state.step])
        told = state.index.state
        assert told["objects"]["state"]["global_step"] == told["updates"] == state.step
        assert told["parts"]["lr_scheduler"]["last_epoch"] == state.step
        assert state.index.left_out == []
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=3)).train(resume_from_checkpoint=False)
    assert states_of(tmp_path) == []


def looking(trainer, folder):
    """Look before each step at what others find of the run; return that, by step."""
    seen = []

    def look(self, args, state, control, **kwargs):
        found = [each for each in states_of(folder) if isinstance(each, PublishedState)]
        seen.append((state.global_step, [(each.step, each.index.verdict.condition) for each in found]))

    trainer.add_callback(callback(on_step_begin=look))
    return seen


def test_a_healthy_training_is_the_same_to_the_bit_with_and_without(tmp_path):
    import torch

    expected, seen = train_stock(tmp_path / "stock", ()), {}
    for is_shared in (True, False):
        kept, folder = {}, tmp_path / str(is_shared)
        trainer = kept["trainer"] = tiny_trainer(folder, max_steps=30)
        trainer.add_callback(recording(kept))
        seen[is_shared] = looking(trainer, folder)
        SelfHealingTrainer(trainer, HealingConfig(shared_memory=is_shared, **EVERY)).train()
        assert all(torch.equal(kept["end"][name], tensor) for name, tensor in expected["end"].items())
        assert states_of(folder) == []
    assert all(found == [] for _, found in seen[False])
    assert max(of for _, found in seen[True] for of, _ in found) >= 24
    assert max(len(found) for _, found in seen[True]) <= 3  # two, and a third until its successor is there


class Broken(Exception):
    """What a user's code raises."""


def test_an_exception_leaves_what_a_new_process_may_go_on_from(tmp_path):
    def fail(self, args, state, control, **kwargs):
        if state.global_step == 14:
            raise Broken

    trainer = tiny_trainer(tmp_path, max_steps=30)
    trainer.add_callback(callback(on_step_end=fail))
    with pytest.raises(Broken):
        SelfHealingTrainer(trainer, HealingConfig(**EVERY)).train()
    assert [state.step for state in states_of(tmp_path)] == [12, 8]
    folder = states_of(tmp_path)[0].folder.path
    assert len(list(folder.glob("*.block-*"))) == 2
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=3)).train()


def test_a_state_that_is_sick_or_undone_is_withdrawn(tmp_path):
    import torch

    trainer, harmed = tiny_trainer(tmp_path, max_steps=40), []

    def harm(self, args, state, control, **kwargs):
        if state.global_step == 21 and not harmed:
            harmed.append(True)
            with torch.no_grad():
                trainer.model.model.layers[0].mlp.up_proj.weight.mul_(50.0)

    seen = looking(trainer, tmp_path)
    trainer.add_callback(callback(on_step_end=harm))
    output = SelfHealingTrainer(trainer, HealingConfig(**EVERY)).train()
    assert output.metrics["healing/rollbacks"] >= 1
    for step, found in seen:
        assert all(condition is not Condition.SICK and of <= step for of, condition in found), (step, found)
    assert max(of for _, found in seen[-3:] for of, _ in found) >= 32  # it goes on after a return


def notes(folder):
    lines = (folder / "healing" / "ledger.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "note"]


def test_without_room_states_are_kept_in_memory_alone_and_it_is_said_once(tmp_path, own_shared_memory, monkeypatch):
    config = HealingConfig(shared_memory_max_fraction=1e-9, **EVERY)
    SelfHealingTrainer(tiny_trainer(tmp_path / "a", max_steps=10), config).train()
    monkeypatch.setenv("SELF_HEALING_SHARED_MEMORY", str(tmp_path / "none"))
    SelfHealingTrainer(tiny_trainer(tmp_path / "b", max_steps=10), HealingConfig(**EVERY)).train()
    for folder, why in (("a", "no room"), ("b", "No such file")):
        told = [entry["body"]["text"] for entry in notes(tmp_path / folder) if entry["name"] == "no-shared-memory"]
        assert len(told) == 1
        assert why in told[0]
        assert "checkpoint on disk" in told[0]
        names = [entry["name"] for entry in notes(tmp_path / folder)]
        assert "no-snapshots" not in names


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can mount a memory")
def test_a_memory_that_fills_up_costs_no_run(tmp_path, own_shared_memory, monkeypatch):
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small memory cannot be mounted here")
    monkeypatch.setenv("SELF_HEALING_SHARED_MEMORY", str(small))

    def fill(self, args, state, control, **kwargs):
        if state.global_step == 9:
            status = os.statvfs(small)
            (small / "others").write_bytes(b"x" * (status.f_bavail * status.f_frsize - 100_000))

    trainer = tiny_trainer(tmp_path / "out", max_steps=30)
    trainer.add_callback(callback(on_step_begin=fill))
    try:
        config = HealingConfig(shared_memory_max_fraction=0.9, **EVERY)
        assert SelfHealingTrainer(trainer, config).train().global_step == 30
        assert [path.name for path in small.iterdir()] == ["others"]
        assert "shared-memory-full" in [entry["name"] for entry in notes(tmp_path / "out")]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
