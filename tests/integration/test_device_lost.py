"""A device whose context is dead ends the process, with its newest state on disk, and the next process goes on exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from self_healing import DeviceLost, HealingConfig, SelfHealingTrainer
from self_healing.adapters.ending.device_errors import is_device_lost
from self_healing.drills.faults.poisoned_batches import PoisonedBatches
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, same
from self_healing.report.postmortem import read_postmortem
from self_healing.snapshots.unfinished import UNFINISHED

from .killed_training import without_clocks
from .rolled_back import made

pytestmark = pytest.mark.torch
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call"
HARMLESS = ("detach", "alias", "view", "_unsafe_view", "t", "transpose", "as_strided", "expand", "permute")
"""What only makes another name for the same memory, which a dead device does not hinder."""


class DeadDevice(TorchDispatchMode):
    """Stands for a dead context: from now on whatever reads or writes what a trainer has on its device raises."""

    def __init__(self, trainer):
        super().__init__()
        tensors = [*trainer.model.parameters(), *trainer.model.buffers(), trainer._tr_loss]
        tensors += [each for state in trainer.optimizer.state.values() for each in state.values()]
        self.memory = {each.untyped_storage().data_ptr() for each in tensors if isinstance(each, torch.Tensor)}
        self.touched = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        touched = any(isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() in self.memory for t in leaves)
        if touched and func.__name__.split(".")[0] not in HARMLESS:
            self.touched += 1
            raise torch.AcceleratorError(ASSERT)
        return func(*args, **(kwargs or {}))


class Dies:
    """Lets the device of a trainer die in the forward pass of a step, for good."""

    def __init__(self, trainer, step):
        self.trainer, self.step, self.mode = trainer, step, None
        trainer.model.register_forward_pre_hook(self.forward)

    def forward(self, module, args):
        if self.mode is None and module.training and self.trainer.state.global_step == self.step:
            self.mode = DeadDevice(self.trainer)
            self.mode.__enter__()
        if self.mode is not None:
            raise torch.AcceleratorError(ASSERT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.mode is not None:
            self.mode.__exit__(None, None, None)


def train_until_the_device_dies(trainer, step, config=None):
    with Dies(trainer, step) as dies, pytest.raises(DeviceLost) as raised:
        SelfHealingTrainer(trainer, config or HealingConfig(snapshot_every_steps=4)).train()
    return raised.value, dies


def checkpoints(folder):
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


def notes(folder, name):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line["body"]["text"] for line in lines if line["kind"] == "note" and line["name"] == name]


@pytest.mark.parametrize("kind", ["dropout", "accumulation-4", "scheduler-and-sgd", "lora", "changing-buffers", "sft"])
def test_the_newest_state_goes_to_disk_without_the_device_and_a_resume_is_exact(kind, tmp_path):
    """The states are of steps 0, 2, 4 and so on; an epoch has five steps, or some more."""
    stock = made(kind, tmp_path / "stock")
    stock.train()
    lost, dies = train_until_the_device_dies(
        made(kind, tmp_path / "ours"), 9, HealingConfig(snapshot_every_steps=4, good_after=1)
    )
    assert dies.mode.touched == 0, "nothing was asked of the device after it had died"
    assert checkpoints(tmp_path / "ours") == ["checkpoint-8"]
    assert "checkpoint-8 was written from host memory" in str(lost)
    again = made(kind, tmp_path / "ours")
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    assert again.state.global_step == 13
    assert same(again, stock)
    assert log_of(again) == log_of(stock)


def log_of(trainer):
    return [without_clocks(entry) for entry in trainer.state.log_history]


@pytest.mark.parametrize("step", [5, 10])
def test_a_state_from_the_beginning_of_an_epoch_is_resumed_exactly_too(step, tmp_path):
    stock = made("drawing-collator", tmp_path / "stock")
    stock.train()
    train_until_the_device_dies(
        made("drawing-collator", tmp_path / "ours"), step, HealingConfig(snapshot_every_steps=5)
    )
    assert checkpoints(tmp_path / "ours") == [f"checkpoint-{step}"]
    again = made("drawing-collator", tmp_path / "ours")
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    assert same(again, stock)


def test_the_checkpoint_is_what_the_trainer_would_have_written(tmp_path):
    """All files of a checkpoint, with the same contents, and a manifest; the trainer is left as it was."""
    stock = tiny_trainer(tmp_path / "stock", save_strategy="steps", save_steps=24)
    stock.train()
    trainer = tiny_trainer(tmp_path / "ours", save_strategy="steps", save_steps=24, logging_steps=10)
    trainer.args.save_steps = 1000  # what is written at step 24 is ours
    train_until_the_device_dies(trainer, 25)
    theirs, ours = tmp_path / "stock" / "checkpoint-24", tmp_path / "ours" / "checkpoint-24"
    assert {each.name for each in ours.iterdir()} == {each.name for each in theirs.iterdir()} | {
        "healing_manifest.json",
        "healing_state.json",
    }
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    for name in ("optimizer.pt", "scheduler.pt"):
        assert equal(torch.load(ours / name), torch.load(theirs / name)), name
        assert (ours / name).stat().st_size < 1.1 * (theirs / name).stat().st_size, "only what belongs to it"
    assert state_of(ours) == state_of(theirs)
    assert trainer.state.global_step == 25
    assert not list((tmp_path / "ours").glob(f"{UNFINISHED}*"))
    verdict = json.loads((ours / "healing_manifest.json").read_text())["verdict"]
    assert verdict["condition"] in ("intact", "good")


def state_of(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    control = state["stateful_callbacks"]["TrainerControl"]["args"]
    control["should_save"] = control["should_evaluate"] = False  # asked for at that step by one of them alone
    return {name: value for name, value in state.items() if name != "save_steps"}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other or callable(one)


def test_data_that_were_left_out_stay_out(tmp_path):
    """Some batches of noise are left out, in the epoch in which the device dies."""
    config = HealingConfig(snapshot_every_steps=5, shared_memory=False)

    def poisoned(folder):
        trainer = tiny_trainer(folder, max_steps=60, logging_steps=1)
        PoisonedBatches(at_step=42, count=5).plant(trainer)
        return trainer

    whole, trainer = poisoned(tmp_path / "whole"), poisoned(tmp_path / "ours")
    SelfHealingTrainer(whole, config).train()
    train_until_the_device_dies(trainer, 57, config)
    assert checkpoints(tmp_path / "ours") == ["checkpoint-57"]
    again = tiny_trainer(tmp_path / "ours", max_steps=60, logging_steps=1)
    again.data_collator = trainer.data_collator  # which knows the batches that are noise
    SelfHealingTrainer(again, config).train(resume_from_checkpoint="auto")
    assert again.state.global_step == 60
    assert same(again, whole)


def test_ledger_and_postmortem_say_what_happened_and_nothing_is_tried(tmp_path):
    trainer = tiny_trainer(tmp_path)
    lost, _ = train_until_the_device_dies(trainer, 18)
    assert (lost.code, lost.exit_code) == (77, 77)
    assert isinstance(lost.__cause__, torch.AcceleratorError)
    assert 'run the script again, with train(resume_from_checkpoint="auto")' in str(lost)
    (told,) = notes(tmp_path, "device-lost")
    assert "at step 18" in told
    assert "checkpoint-16 was written from host memory" in told
    postmortem = read_postmortem(tmp_path / "postmortem.json")
    assert (postmortem.exit_reason, postmortem.exception_type, postmortem.last_step) == (
        "device_lost", "AcceleratorError", 18,
    )  # fmt: skip
    (incident,) = postmortem.incidents
    assert incident["class"] == "device_assert"
    assert [action["actions"] for action in postmortem.recovery_actions] == [["stop"]]
    assert any("CUDA_LAUNCH_BLOCKING" in advice for advice in postmortem.advice)


def test_a_damaged_or_sick_state_is_passed_over(tmp_path):
    from transformers import TrainerCallback

    from .test_returning import find_session, spoil_memory

    trainer = tiny_trainer(tmp_path)

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 17:
                spoil_memory(find_session(trainer)[0].rollback.keeper)

    trainer.add_callback(Spoil())
    train_until_the_device_dies(trainer, 18)
    assert checkpoints(tmp_path) == ["checkpoint-12"]


def test_a_lost_device_is_not_given_the_furthest_state_back(tmp_path):
    """The run has returned from step 17 to 16 and dies there: it ends, and what it had reached before is no concern."""
    trainer, raised = tiny_trainer(tmp_path), []

    def fail_once(module, args):
        if trainer.state.global_step == 17 and not raised:
            raised.append(1)
            dies.step = 16
            raise RuntimeError("something that may not come again")

    trainer.model.register_forward_pre_hook(fail_once)
    with Dies(trainer, None) as dies, pytest.raises(DeviceLost):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=4)).train()
    assert dies.mode.touched == 0
    assert checkpoints(tmp_path) == ["checkpoint-16"]


def test_without_states_the_process_ends_all_the_same_and_names_what_is_left(tmp_path):
    trainer = tiny_trainer(tmp_path, save_strategy="steps", save_steps=10)
    lost, _ = train_until_the_device_dies(trainer, 18, HealingConfig(snapshot_memory_fraction=0))
    assert "host memory holds no state" in str(lost)
    assert "newest checkpoint on disk" in str(lost)
    assert checkpoints(tmp_path) == ["checkpoint-10"]


def test_who_only_watches_leaves_the_exception_as_it_is(tmp_path):
    trainer = tiny_trainer(tmp_path)
    with Dies(trainer, 18), pytest.raises(torch.AcceleratorError):
        SelfHealingTrainer(trainer, HealingConfig(mode="observe")).train()
    assert checkpoints(tmp_path) == []


def test_the_device_is_lost_also_where_the_taking_of_a_state_finds_it_out(tmp_path):
    from transformers import TrainerCallback

    trainer, dead = tiny_trainer(tmp_path), []

    class DiesBetweenSteps(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 12:  # our callback comes later, and takes a state
                dead.append(DeadDevice(trainer))
                dead[0].__enter__()

    trainer.add_callback(DiesBetweenSteps())
    try:
        with pytest.raises(DeviceLost):
            SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=4)).train()
    finally:
        dead[0].__exit__(None, None, None)
    assert checkpoints(tmp_path) == ["checkpoint-8"]


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (torch.AcceleratorError(ASSERT), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("[rank0]: NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."), True),
        (RuntimeError("an unspecified launch failure"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (RuntimeError("CUDA error: invalid configuration argument"), False),
        (ValueError("the log said: CUDA error: device-side assert triggered"), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_counts_as_a_lost_device(error, is_lost):
    assert is_device_lost(error) is is_lost
    later = KeyError("raised while that was handled")
    later.__context__ = error
    assert is_device_lost(later) is is_lost


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
trainer = tiny_trainer(sys.argv[1], max_steps=30)
def fail(*_):
    if sys.argv[2] == "dies" and trainer.state.global_step >= 13:
        raise RuntimeError("CUDA error: device-side assert triggered")
trainer.model.register_forward_pre_hook(fail)
SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=4)).train(resume_from_checkpoint="auto")
torch.save(trainer.model.state_dict(), sys.argv[1] + "/end.pt")
"""


def run(folder, how):
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), how], capture_output=True, text=True, env=environ, check=False
    )


def test_the_process_ends_with_77_and_the_next_one_goes_on(tmp_path):
    died = run(tmp_path / "a", "dies")
    assert died.returncode == 77, died.stderr
    assert "RuntimeError: CUDA error: device-side assert triggered" in died.stderr, "with its traceback"
    assert checkpoints(tmp_path / "a") == ["checkpoint-12"]
    assert run(tmp_path / "a", "lives").returncode == 0
    clean = tiny_trainer(tmp_path / "clean", max_steps=30)
    clean.train()
    end = torch.load(tmp_path / "a" / "end.pt")
    assert all(torch.equal(end[name], value) for name, value in clean.model.state_dict().items())
    assert losses(clean)
