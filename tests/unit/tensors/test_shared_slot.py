"""Snapshots in shared memory on the CPU: they outlive a killed process bit for bit, and are as good in their own."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from self_healing.snapshots.shared_memory import SharedRun
from self_healing.snapshots.shared_reader import read_states
from self_healing.tensors import host_memory
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.plain import from_plain, to_plain
from self_healing.tensors.shared_tensors import read_tensor
from self_healing.tensors.state import capture, keep

from . import shared_training
from .captured import bits, noise
from .shared_training import everything, made, published, trained_step

SHM = Path("/dev/shm")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not os.access(SHM, os.W_OK), reason="there is no shared memory here"),
]


@pytest.fixture
def base():
    folder = Path(tempfile.mkdtemp(prefix="test-self-healing-", dir=SHM))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def run(base):
    run = SharedRun.open("run", base=base)
    yield run
    run.remove()
    assert list(base.iterdir()) == []


def tensors_of(state):
    return {name: read_tensor(state, name) for name in state.tensors}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


@pytest.mark.parametrize(("when", "steps"), [("after", [7, 6]), ("before", [6])])
def test_a_killed_loop_leaves_the_states_it_had_bit_for_bit(when, steps, base, tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(Path(shared_training.__file__).parents[3] / "src")}
    command = [sys.executable, shared_training.__file__, str(base), str(tmp_path), "7", when]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    states = read_states("run", base=base)
    assert [state.step for state in states] == steps
    for state in states:
        assert_same(tensors_of(state), torch.load(tmp_path / f"{state.step}.pt", weights_only=True))


def taken(slot, *things):
    copies = HostCopies(slot)
    held = capture(list(things), copies=copies)
    copies.start()
    return held, copies


def test_a_snapshot_in_shared_memory_is_restored_as_any_other(run):
    model, optimizer = made()
    trained_step(model, optimizer)
    slot = HostSlot(run.slot())
    held, copies = taken(slot, model, optimizer)
    before = everything(model, optimizer)
    trained_step(model, optimizer)
    held.restore()
    assert_same(everything(model, optimizer), before)
    assert slot.is_shared
    assert copies.verify()
    assert published(run, copies, 1)
    (state,) = read_states("run", base=run.path.parents[1])
    assert_same(tensors_of(state), before)


KINDS = {
    "transposed": lambda: noise((4, 6), torch.float32).t(),
    "channels-last": lambda: noise((2, 3, 4, 5), torch.bfloat16).to(memory_format=torch.channels_last),
    "every-second-column": lambda: noise((4, 8), torch.float32)[:, ::2],
    "not-aligned": lambda: noise((9,), torch.float32)[1:],
    "complex": lambda: noise((3,), torch.complex128),
    "eight-bits": lambda: noise((11,), torch.float8_e4m3fn),
    "true-or-false": lambda: noise((9,), torch.bool),
    "a-number": lambda: torch.tensor(3.5),
    "nothing": lambda: torch.zeros(0, 4),
}


def test_every_kind_of_tensor_is_read_as_it_was_and_what_cannot_be_there_is_listed(run):
    tensors = {name: make() for name, make in KINDS.items()}
    copies = HostCopies(HostSlot(run.slot()))
    keep({"kinds": tensors, "odd": [torch.eye(3).to_sparse()]}, copies, "all")
    copies.start()
    assert published(run, copies, 1)
    (state,) = read_states("run", base=run.path.parents[1])
    assert_same(tensors_of(state), {f"all.kinds.{name}": tensor for name, tensor in tensors.items()})
    assert read_tensor(state, "all.kinds.channels-last").stride() == tensors["channels-last"].stride()
    assert state.index.left_out == ["all.odd.0"]


def test_tensors_are_named_after_what_they_are_and_one_of_two_names_is_there_twice(run):
    model = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    shared = torch.arange(5.0)
    for each in model:
        each.register_buffer("shared", shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
    model[0].weight.grad = torch.ones(4, 4)
    optimizer.step()
    copies = HostCopies(HostSlot(run.slot()))
    capture([model, optimizer], copies=copies)
    for _ in range(2):
        copies.of(torch.ones(3))
    copies.start()
    described = copies.described()
    assert list(described.fixed) == [
        "0.weight", "gradient/0.weight", "0.shared", "1.shared", "optimizer.momentum_buffer/0.weight",
    ]  # fmt: skip
    assert list(described.others) == ["optimizer.groups.0.lr", "tensor", "tensor (2)"]
    assert described.fixed["0.shared"] == described.fixed["1.shared"]
    assert set(described.names.values()) == {*described.fixed, *described.others} - {"1.shared"}


def test_the_layout_is_put_into_words_once_as_long_as_it_stays_the_same(run):
    model, optimizer = made()
    trained_step(model, optimizer)
    slot = HostSlot(run.slot())
    fixed = [taken(slot, model, optimizer)[1].described().fixed for _ in range(2)]
    assert fixed[0] is fixed[1]
    model.register_buffer("more", torch.ones(3))
    assert "more" in taken(slot, model, optimizer)[1].described().fixed


def test_others_stop_finding_a_snapshot_before_its_memory_is_written_to(run):
    class Watching:
        def __init__(self, slot):
            self.slot, self.seen = slot, []

        def __getattr__(self, name):
            return getattr(self.slot, name)

        def withdraw(self):
            before = [bits(block.bytes) for block in slot._blocks]
            self.seen.append((before, bool(read_states("run", base=run.path.parents[1]))))
            self.slot.withdraw()

    model, optimizer = made()
    slot = HostSlot(backing := Watching(run.slot()))
    copies = taken(slot, model, optimizer)[1]
    assert published(run, copies, 1)
    memory = [bits(block.bytes) for block in slot._blocks]
    trained_step(model, optimizer)
    newer = taken(slot, model, optimizer)[1]
    assert backing.seen == [([], False), (memory, True)]
    assert read_states("run", base=run.path.parents[1]) == []
    assert copies.described() is None
    assert published(run, newer, 2)


def test_without_room_a_snapshot_lies_in_the_memory_of_the_process(base):
    run = SharedRun.open("run", base=base, fraction=1e-9)
    slot = HostSlot(run.slot())
    model, optimizer = made()
    held, copies = taken(slot, model, optimizer)
    assert not slot.is_shared
    assert not copies.described().is_shared
    assert copies.verify()
    held.restore()
    run.remove()


def test_a_forked_child_gives_nothing_of_its_parent_back(run):
    slot = HostSlot(run.slot())
    slot.reserve(1 << 20, pinned=False)
    block = slot._blocks[0]
    address, size = block.bytes.data_ptr(), block.capacity
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        # What the child has there is its own: private, anonymous, and only where there is nothing.
        there = libc.mmap(address, size, 3, 0x22 | 0x100000, -1, 0)
        ctypes.memset(address, 7, size)
        run._slots.clear()
        slot.backing._blocks.clear()
        slot._blocks.clear()
        del block
        gc.collect()
        os._exit(0 if there == address and ctypes.string_at(address, size) == b"\x07" * size else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((block.bytes[:100] == 0).all())
    assert host_memory._of_parent == []


def test_what_is_kept_besides_tensors_becomes_plain_json_and_comes_back(run):
    copies = HostCopies(HostSlot(run.slot()))
    values = {
        "numbers": [1, 2.5, float("nan"), float("-inf"), True, None, "text"],
        "betas": (0.9, 0.999),
        "by number": {1: "a", 2: [torch.arange(3.0)]},
        "looks odd": {"$float": "nan"},
        "set": {"a", "b"},
        "tensor": torch.ones(2),
    }
    kept = keep(values, copies, "all")
    copies.start()
    described = copies.described()
    plain = json.loads(json.dumps(to_plain(kept, described.names), allow_nan=False))
    back = from_plain(plain, lambda name: name)
    assert repr(back.pop("numbers")) == repr(values["numbers"])
    assert back == {
        **{key: values[key] for key in ("betas", "looks odd", "set")},
        "by number": {1: "a", 2: ["all.by number.2.0"]},
        "tensor": "all.tensor",
    }
    assert to_plain({"x": object()}, {}) == {"x": {"$unknown": "object"}}
    for damaged in ({"$unknown": "object"}, {"$float": "7"}, {"$call": "os.system"}):
        with pytest.raises(ValueError, match=r"left out|not understood"):
            from_plain(damaged, lambda name: name)
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    assert "nested too deep" in json.dumps(to_plain(deep, {}))
