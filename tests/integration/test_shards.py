"""Models that FSDP2 has spread over real ranks: states, gradients, a step that is taken back, checkpoints."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.snapshots.checkpoint_check import check
from self_healing.snapshots.resume import choose

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("shards") / "launch.py"
WITH_TWO = [
    "captured", "captured_after_an_evaluation", "adopted", "clipped", "not_finite_on_one_rank", "skipped", "retried",
    "saved", "loaded_from_others", "disk_full_on_one_rank", "replicated",
]  # fmt: skip
POINTS = ["second forward", "model forward", "last backward", "first backward", "second added", "first added"]
"""Where all ranks fail: in the forward pass, between two layers, and inside of one of them in the backward pass."""


class Ranks:
    """What the ranks of one launch have found."""

    def __init__(self, folder: Path, world: int, cases: list[str]) -> None:
        command = [sys.executable, str(SCRIPT), str(folder), str(world), *cases]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
        self.output = done.stdout + done.stderr
        paths = [folder / f"found-{world}-{rank}.json" for rank in range(world)]
        assert all(path.exists() for path in paths), self.output
        self._found = [json.loads(path.read_text()) for path in paths]

    def __call__(self, case: str) -> list[dict]:
        """Return what each rank found in a case."""
        raised = [text for each in self._found for name, text in each.items() if "raised" in text]
        assert all(case in each for each in self._found), raised or self.output
        found = [each[case] for each in self._found]
        assert not any("raised" in each for each in found), found
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def four(folder):
    return Ranks(folder, 4, ["saved", "replicas_of_shards", "otherwise_sharded"])


@pytest.fixture(scope="module")
def two(folder, four):
    """Two ranks, which go on from what four have left."""
    return Ranks(folder, 2, WITH_TWO)


@pytest.mark.parametrize("way", ["clones", "host", "host-again"])
def test_each_rank_sets_its_own_shards_aside_and_puts_them_back_to_the_bit_without_any_collective(two, way):
    for found in two("captured"):
        assert found[way]["put back"]
        assert found[way]["same objects"]
        assert found[way]["trained again"]
        assert (found[way]["taking"], found[way]["putting"]) == (0, 0)
        assert found[way]["bytes"] == found[way]["bytes here"]


def test_shards_lie_in_the_slot_and_are_measured_and_hashed_like_any_tensor(two):
    for found in two("captured"):
        assert found["left out"] == []
        assert (found["host"]["collected"], found["host-again"]["collected"]) == (2, 0)
        assert found["norms"]
        assert found["auditing"] == 0
        assert found["whole"]
        assert not found["whole after a bit flipped"]


def test_parameters_that_are_gathered_at_the_moment_are_captured_as_the_shards_they_come_from(two):
    for found in two("captured_after_an_evaluation"):
        assert found == {"gathered": True, "norms": True, "put back": True, "trained again": True}


def test_a_state_of_shared_memory_is_taken_over_by_each_rank_for_its_own_shards(two):
    for found in two("adopted"):
        assert found["differences"] == []
        assert found["collectives"] == 0
        assert found["same"]
        assert found["same gradients"]
        assert found["trained on"]
        assert "has shape" in found["of a whole model"][0]


def test_the_part_that_one_process_holds_is_not_written_as_if_it_were_the_whole(two):
    assert all("a part of a tensor" in found["as a file of one process"] for found in two("adopted"))


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16", "torch.float16"])
def test_sharded_gradients_are_clipped_as_torch_does_it_with_its_one_reduction(two, dtype):
    for found in two("clipped"):
        stock, ours = found[dtype]["collectives"]
        print(f"{dtype}: collectives to clip, stock {stock}, guarded {ours}")
        assert ours <= stock == 1
        assert found[dtype]["finite"]
        assert found[dtype]["same on all ranks"]
        if dtype == "torch.float16":
            assert found[dtype]["norm"][1] > 256.0  # whose square is no float16: torch clips everything to zero
        else:
            assert found[dtype]["same gradients"]
            assert found[dtype]["norm"][0] == pytest.approx(found[dtype]["norm"][1], rel=0.01)


def test_what_is_not_finite_in_the_shard_of_one_rank_is_seen_by_all_at_the_price_of_the_norm(two):
    for found in two("not_finite_on_one_rank"):
        assert list(found.values()) == [[1.0, 1.0, 1, True]] * 4


@pytest.mark.parametrize("optimizer", ["for-loop", "foreach", "fused", "SGD"])
def test_a_skipped_step_leaves_every_shard_as_it_was_and_others_are_as_in_a_stock_loop(two, optimizer):
    for found in two("skipped"):
        told = found[optimizer]
        stock, ours = told["collectives"]
        print(f"{optimizer}: collectives per step, stock {stock}, guarded {ours}")
        assert ours == stock
        assert told["way"] == ("fused" if optimizer == "fused" else "host")
        assert told["first untouched"]
        assert told["untouched"]
        assert told["as stock"]


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_failed_on_all_ranks_is_run_again_with_the_same_gradients_once_fsdp2_is_reset(two, point):
    for found in two("retried"):
        told = found[f"{point}, reset by us"]
        assert told["failed"]
        assert told["collectives"] == 0
        assert told["same"]
        assert told["ends same"]
        assert found[f"{point}, accumulated"], "the gradients of the micro-batch before the failed one are kept"
        assert told["told"] == {"forward": [1, 0], "backward": [2, 1], "added": [2, 2]}[point.split()[1]]


@pytest.mark.parametrize("point", [point for point in POINTS if "forward" not in point])
def test_without_the_reset_the_parameters_stay_gathered_without_a_word(two, point):
    for found in two("retried"):
        assert found[f"{point}, reset by nobody"]["failed"]
        assert not found[f"{point}, reset by nobody"]["sharded"]


@pytest.mark.parametrize("point", ["second added", "first added"])
def test_what_autograd_has_added_to_a_gathered_parameter_would_count_twice_after_the_reset_of_torch_alone(two, point):
    for found in two("retried"):
        assert found[f"{point}, reset by torch alone"]["sharded"]
        assert not found[f"{point}, reset by torch alone"]["same"]


def test_shards_that_are_replicated_too_are_captured_clipped_retried_and_saved_alike(four):
    """HSDP: two replicas of two shards each."""
    for found in four("replicas_of_shards"):
        assert found["collectives"][1] <= found["collectives"][0]
        del found["collectives"]
        assert all(found.values()), found


@pytest.mark.parametrize("kind", ["kept gathered", "bfloat16", "unreduced", "unreduced bfloat16"])
def test_other_ways_to_shard_are_put_back_after_a_failure_as_well(four, kind):
    for found in four("otherwise_sharded"):
        assert found[kind]["failed"]
        assert found[kind]["same"]
        assert found[kind]["unreduced"]


# -- checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_checkpoint_that_all_ranks_write_while_they_train_is_gone_on_from_to_the_bit(request, ranks):
    for number, found in enumerate(request.getfixturevalue("two" if ranks == 2 else "four")("saved")):
        print(f"rank {number} of {ranks}: held up {found['held up']:.3f} s, written after {found['took']:.3f} s")
        assert found["failed"] == [None, None]
        assert found["collectives"] == [0, 0, 0], "none on the training's own group"
        assert found["step"] == [3, ranks]
        assert found["data"] == [1, 3, list(range(100)), [1.5, None]]
        assert found["own"] == {"rank": number, "seen": [number] * 3}
        assert found["put back"]
        assert found["same objects"]
        assert found["random"]
        assert found["trained on"]
        assert found["rate"][0] == found["rate"][1]
        assert found["left"] == []


def test_the_checkpoint_of_four_ranks_is_taken_over_by_two(two):
    for found in two("loaded_from_others"):
        assert found == {"same": True, "of": 4, "tensors": 29, "failed": None}


def test_the_checkpoint_of_two_ranks_is_taken_over_by_one_process_without_any_group(two, folder):
    import torch

    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints, load

    from .shards.harness import Uneven

    two("loaded_from_others")
    model = Uneven()
    optimizer = torch.optim.AdamW(model.parameters())
    loaded = load(folder / "fewer" / "checkpoint-6", model, optimizer)
    wanted = torch.load(folder / "whole-4.pt", weights_only=True)
    assert loaded.world_size == 2
    assert all(torch.equal(value, wanted[f"model.{name}"]) for name, value in model.state_dict().items())
    names = {parameter: name for name, parameter in model.named_parameters()}
    moments = {f"{names[p]}.{key}": value for p, state in optimizer.state.items() for key, value in state.items()}
    assert len(moments) == 7 * 3
    assert all(torch.equal(value, wanted[name]) for name, value in moments.items())
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.00793893, rel=1e-5)

    alone = ShardedCheckpoints(folder / "alone")
    alone.save(7, model, optimizer, data={"batch": 9})
    with torch.no_grad():
        model.outer.fill_(5.0)
    assert alone.wait().failed is None
    assert alone.load(folder / "alone" / "checkpoint-7", model, optimizer).data == {"batch": 9}
    assert torch.equal(model.outer, wanted["model.outer"])


def test_a_disk_that_refuses_the_shards_of_one_rank_is_told_to_all_and_the_run_goes_on(two):
    for found in two("disk_full_on_one_rank"):
        assert all("rank 1: OSError" in failed for failed in found["failed"])
        assert found["same on all"]
        assert found["left"] == []
        assert found["then"] == [None, ["checkpoint-2"]]


def test_a_replicated_model_is_written_once_and_fits_into_any_model_of_its_shape(two):
    for found in two("replicated"):
        assert found["failed"] is None
        assert found["plain"]
        assert found["again"]
        assert found["sharded"]
        assert found["bytes"] < 50_000
        assert "second.weight has shape (3, 7)" in found["refused"]
        assert found["untouched"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def outside(path):
    path.write_text(path.read_text().replace("__1_0.distcp", "../__1_0.distcp", 1))


HARM = {
    "a bit flips": ("__1_0.distcp", flip, "__1_0.distcp is damaged"),
    "a file is cut": ("__0_0.distcp", lambda path: os.truncate(path, 900), "__0_0.distcp has 900 bytes"),
    "a rank's file is gone": ("__2_0.distcp", Path.unlink, "__2_0.distcp is missing"),
    "the index is gone": ("index.json", Path.unlink, "index.json is missing"),
    "the state is gone": ("state.json", Path.unlink, "state.json is missing"),
}
WITHOUT_SUMS = {
    **{name: harm for name, harm in HARM.items() if name != "a bit flips"},
    "a file is cut": ("__0_0.distcp", lambda path: os.truncate(path, 900), "__0_0.distcp is cut short"),
    "a file outside": ("index.json", outside, "names a file outside the folder"),
}
KINDS = {True: HARM, False: WITHOUT_SUMS}


@pytest.mark.parametrize(
    ("is_hashed", "harm"), [(is_hashed, harm) for is_hashed, kinds in KINDS.items() for harm in kinds]
)
def test_a_harmed_checkpoint_is_passed_over_and_the_one_before_it_taken(four, folder, tmp_path, is_hashed, harm):
    four("saved")
    shutil.copytree(folder / "run-4", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoint-6"
    (tmp_path / "run" / ".unfinished-sharded-9").mkdir()
    assert choose(tmp_path / "run", finite=True).path == newest
    assert check(newest).verified
    if not is_hashed:
        (newest / "healing_manifest.json").unlink()
    name, do, because = KINDS[is_hashed][harm]
    do(newest / "sharded" / name)
    chosen = choose(tmp_path / "run")
    assert chosen.step == 3
    assert because in chosen.passed_over[0].why


def test_weights_that_are_not_finite_are_found_in_the_shards(four, folder, tmp_path):
    import torch

    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints

    from .shards.harness import Uneven

    four("saved")
    shutil.copytree(folder / "run-4", tmp_path / "run")
    model = Uneven()
    with torch.no_grad():
        model.second.bias[3] = float("nan")
    ShardedCheckpoints(tmp_path / "run").save(9, model, torch.optim.AdamW(model.parameters()), wait=True)
    chosen = choose(tmp_path / "run", finite=True)
    assert chosen.step == 6
    assert "second.bias" in chosen.passed_over[0].why


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_checkpoint_is_unpickled(four, folder, tmp_path):
    """The list that torch itself reads could run anything."""
    import torch

    from self_healing.adapters.ranks.sharded_checkpoint import load

    from .shards.harness import Uneven

    four("saved")
    shutil.copytree(folder / "run-4", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoint-6"
    (newest / "healing_manifest.json").unlink()
    (newest / "sharded" / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    assert choose(tmp_path / "run", finite=True).path == newest
    model = Uneven()
    load(newest, model, torch.optim.AdamW(model.parameters()))
    assert not (tmp_path / "ran").exists()
