"""A check of loss and gradients alone: right, never waiting, and the same on all ranks."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from self_healing import FiniteCheck

pytestmark = pytest.mark.torch
BAD = [math.nan, math.inf, -math.inf]


def stepped(optimizer_kind=torch.optim.AdamW, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = optimizer_kind(model.parameters(), lr=0.1, **settings)
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    return model, optimizer, loss


def test_what_is_finite_is_said_to_be():
    model, _, loss = stepped()
    check = FiniteCheck()
    check(loss, model.parameters())
    found = check.now()
    assert (found.step, found.is_finite, found.consecutive, found.should_stop) == (1, True, 0, False)
    assert found.loss == pytest.approx(loss.item())
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert found.grad_norm == pytest.approx(norm.item())
    assert check.total == 0


@pytest.mark.parametrize("bad", BAD)
def test_a_loss_is_found_without_gradients(bad):
    check = FiniteCheck()
    check(torch.tensor(bad))
    assert not check.now().is_finite
    assert list(check.bad_steps) == [1]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("given", ["model", "parameters", "gradients"])
def test_gradients_are_found_behind_a_finite_loss(given, bad):
    model, _, loss = stepped()
    model.bias.grad[1] = bad
    check = FiniteCheck()
    if given == "gradients":
        check(loss, gradients=[p.grad for p in model.parameters()])
    else:
        check(loss, model if given == "model" else model.parameters())
    assert not check.now().is_finite


def test_one_after_the_other_is_counted_and_a_good_step_ends_it():
    check = FiniteCheck(max_consecutive=3)
    for value in (math.nan, math.nan, 1.0, math.nan, math.nan, math.nan):
        check(torch.tensor(value))
    found = check.now()
    assert (found.consecutive, found.should_stop, check.total) == (3, True, 5)
    assert list(check.bad_steps) == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("settings", [{}, {"fused": True}], ids=["plain", "fused"])
@pytest.mark.parametrize("bad", [math.nan, None])
def test_an_update_is_made_only_where_the_step_is_finite(bad, settings):
    model, optimizer, loss = stepped(**settings)
    twin, other, _ = stepped(**settings)
    if bad is not None:
        model.weight.grad[0, 0] = bad
    check = FiniteCheck()
    check(loss, model)
    check.step(optimizer)
    if bad is None:
        other.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(RuntimeError, match="nothing was looked at"):
        check.step(optimizer)


def test_nothing_waits_for_the_device(no_host_waits):
    model, optimizer, loss = stepped(fused=True)
    check = FiniteCheck()
    with no_host_waits():
        check(loss, model)
        check.step(optimizer)
        check(loss, model.parameters())


def test_it_goes_on_after_a_resume():
    check = FiniteCheck(max_consecutive=2)
    check(torch.tensor(1.0))
    check(torch.tensor(math.nan))
    resumed = FiniteCheck(max_consecutive=2)
    resumed.load_state_dict(check.state_dict())
    resumed(torch.tensor(math.nan))
    assert resumed.now().should_stop
    assert list(resumed.bad_steps) == [2, 3]


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="one step at least"):
        FiniteCheck(max_consecutive=0)


RANKS = """
import math, os, sys, torch
import torch.distributed as dist
from self_healing import FiniteCheck
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
calls = []
original = dist.all_reduce
dist.all_reduce = lambda tensor, *a, **k: (calls.append(tensor.numel()), original(tensor, *a, **k))[1]
alone, together = FiniteCheck(), FiniteCheck(group=dist.group.WORLD)
values = [1.0, math.nan if rank else 1.0, 1.0]
said = []
for value in values:
    alone(torch.tensor(value))
    said.append(together(torch.tensor(value)).step)
together.now(), alone.now()
assert calls == [1, 1, 1], calls
assert said == [0, 1, 2], said
print(list(alone.bad_steps), list(together.bad_steps))
"""


def test_ranks_of_a_group_know_of_each_other_by_one_number(tmp_path):
    meeting = str(tmp_path / "meeting")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(rank), meeting], stdout=subprocess.PIPE, text=True, env=environ
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=60)[0].strip() for process in ranks]
    assert told == ["[] [2]", "[2] [2]"]
