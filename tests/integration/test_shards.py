"""Models that FSDP2 has spread over real ranks: states, gradients, a step that is taken back, checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("shards") / "launch.py"
WITH_TWO = [
    "captured", "captured_after_an_evaluation", "adopted", "clipped", "not_finite_on_one_rank", "skipped", "retried",
]  # fmt: skip
POINTS = ["second forward", "model forward", "last backward", "first backward", "second added", "first added"]
"""Where all ranks fail: in the forward pass, between two layers, and inside of one of them in the backward pass."""


class Ranks:
    """What the ranks of one launch have found."""

    def __init__(self, folder: Path, world: int, cases: list[str]) -> None:
        command = [sys.executable, str(SCRIPT), str(folder), str(world), *cases]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
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
def two(tmp_path_factory):
    return Ranks(tmp_path_factory.mktemp("two"), 2, WITH_TWO)


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
