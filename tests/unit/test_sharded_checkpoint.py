"""Checkpoints of shards in a single process: what is refused, what replaces what, and what a kill leaves."""

from __future__ import annotations

import json
import os
import time

import pytest
import torch

from self_healing.adapters.ranks.sharded_checkpoint import CheckpointNotLoaded, ShardedCheckpoints, load
from self_healing.snapshots.checkpoint_check import check
from self_healing.snapshots.manifest import read_manifest
from self_healing.snapshots.unfinished import writing
from self_healing.snapshots.verdicts import Condition, StateVerdict
from self_healing.tensors.sharded_state import CannotShareError, named_state

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def made(width=3, *, bias=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, width, bias=bias), torch.nn.BatchNorm1d(width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    moments = [value for state in optimizer.state.values() for _, value in sorted(state.items())]
    return [value.clone() for value in (*model.state_dict().values(), *moments)]


def are_same(these, those):
    return all(torch.equal(a, b) for a, b in zip(these, those, strict=True))


@pytest.fixture
def run(tmp_path):
    return ShardedCheckpoints(tmp_path)


@pytest.fixture
def folder(run, tmp_path):
    run.save(5, *made(), wait=True)
    assert run.last.failed is None
    return tmp_path / "checkpoint-5"


def test_a_checkpoint_has_its_manifest_with_step_and_verdict_from_the_moment_it_has_its_name(run, tmp_path):
    run.save(5, *made(), verdict=StateVerdict(Condition.INTACT, "as told"))
    assert run.wait().folder == tmp_path / "checkpoint-5"
    manifest = read_manifest(tmp_path / "checkpoint-5")
    assert (manifest.step, manifest.verdict.condition) == (5, Condition.INTACT)
    names = {"__0_0.distcp", ".metadata", "index.json", "state.json", "rank-0.json"}
    assert manifest.files.keys() == {"trainer_state.json", *(f"sharded/{name}" for name in names)}
    checked = check(tmp_path / "checkpoint-5", finite=True)
    assert (checked.problems, checked.remarks, checked.verified) == ((), (), True)


def test_a_step_that_is_saved_once_more_replaces_the_older_one(run, folder, tmp_path):
    model, optimizer = made()
    with torch.no_grad():
        model[0].weight.fill_(7.0)
    run.save(5, model, optimizer, wait=True)
    other = made()
    run.load(folder, *other)
    assert are_same(state_of(*other), state_of(model, optimizer))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_a_state_that_is_written_from_memory_meanwhile_does_not_take_the_files_away(run, tmp_path):
    run.save(5, torch.nn.Linear(4000, 4000))
    while run.is_saving and not (tmp_path / ".unfinished-sharded-5").exists():
        time.sleep(0.001)
    with writing(tmp_path / "checkpoint-4"):
        pass
    assert run.wait().failed is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]
    assert check(tmp_path / "checkpoint-5").verified


def test_what_a_kill_has_left_is_removed_and_a_checkpoint_that_was_about_to_be_replaced_comes_back(folder, tmp_path):
    folder.rename(tmp_path / ".unfinished-older-checkpoint-5-999999999")
    (tmp_path / ".unfinished-sharded-7" / "sharded").mkdir(parents=True)
    ShardedCheckpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]
    assert check(folder).is_usable


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: made(2), "0.weight has shape (2, 4) and torch.float32, and had (3, 4) and float32"),
        (lambda: made(bias=False), "0.bias is missing"),
        (lambda: (made()[0].double(), None), "0.weight has shape (3, 4) and torch.float64"),
        (
            lambda: (made()[0], torch.optim.SGD(made()[0].parameters())),
            "group 0 of the optimizer holds other parameters",
        ),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_touched(folder, other, why):
    model, optimizer = other()
    before = [value.clone() for value in model.state_dict().values()]
    with pytest.raises(CheckpointNotLoaded) as told:
        load(folder, model, optimizer)
    assert why in str(told.value)
    assert are_same(before, model.state_dict().values())


def test_weights_alone_can_be_loaded_and_an_optimizer_that_was_not_saved_cannot(run, folder, tmp_path):
    model, optimizer = made()
    with torch.no_grad():
        model[0].weight.zero_()
    load(folder, model)
    assert model[0].weight.abs().sum() > 0
    run.save(6, model, wait=True)
    with pytest.raises(CheckpointNotLoaded, match="it holds no optimizer"):
        load(tmp_path / "checkpoint-6", model, optimizer)


def test_shards_that_cannot_be_read_are_told_with_what_has_become_of_the_model(folder):
    os.truncate(folder / "sharded" / "__0_0.distcp", 900)
    with pytest.raises(CheckpointNotLoaded, match="could only be read in part"):
        load(folder, *made())


@pytest.mark.parametrize(
    "content", ["", "[]", '{"v": 2}', '{"v": 1}', '{"v": 1, "tensors": {}, "optimizer": {"$unknown": "X"}}']
)
def test_a_state_that_is_not_understood_is_told(folder, content):
    (folder / "sharded" / "state.json").write_text(content)
    with pytest.raises(CheckpointNotLoaded):
        load(folder, *made())


def test_a_type_that_does_not_exist_is_told(folder):
    path = folder / "sharded" / "index.json"
    path.write_text(path.read_text().replace('"float32"', '"load"'))
    with pytest.raises(CheckpointNotLoaded, match="'load' is no type of tensors"):
        load(folder, *made())
    assert json.loads(path.read_text())["v"] == 1


def test_moments_that_are_spread_otherwise_than_their_parameter_are_refused_before_anything_is_written():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model, optimizer = made()
        optimizer.state[model[0].weight]["rows"] = distribute_tensor(torch.ones(3), mesh, [Shard(0)])
        with pytest.raises(CannotShareError, match=r"rows of 0\.weight"):
            named_state(model, optimizer)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("key", ["data", "own"])
def test_what_nobody_could_read_again_is_not_written_and_that_is_told(run, tmp_path, key):
    run.save(5, *made(), **{key: {"position": object()}}, wait=True)
    assert f"{key} is more than numbers, text and tensors: a object was left out" in run.last.failed
    assert list(tmp_path.iterdir()) == []


def test_buffers_of_each_rank_that_were_too_large_to_keep_are_those_of_the_first(folder):
    path = folder / "sharded" / "rank-0.json"
    content = json.loads(path.read_text())
    content["buffers"]["model.1.running_mean"] = {"$unknown": "Tensor"}
    path.write_text(json.dumps(content))
    model, _ = made()
    wanted = model[1].running_mean.clone()
    model[1].running_mean.zero_()
    load(folder, model)
    assert torch.equal(model[1].running_mean, wanted)
