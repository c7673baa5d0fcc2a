"""Each weight of a loop is held to what its own group and its own optimizer can do to it, and to nothing else."""

from __future__ import annotations

import pytest
import torch

from .plain_loops import assert_same, bare, entries, guarded, make, notes, plant

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def in_groups(first, last):
    """Return a loop whose two layers have settings of their own."""
    loop = make(scheduler=None)
    net = loop.net
    layers = [*net.first.parameters(), *net.norm.parameters()], [*net.last.parameters()]
    loop.optimizer = torch.optim.AdamW([{"params": p, **own} for p, own in zip(layers, (first, last), strict=True)])
    return loop


def incidents(folder):
    return [entry.name for entry in entries(folder) if entry.kind == "incident"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"betas": (0.9, 0.999), "lr": 1e-2}, {"betas": (0.5, 0.6), "lr": 1e-2}),
        ({"lr": 1e-4, "weight_decay": 0.0}, {"lr": 1e-1, "weight_decay": 1.0}),
        ({"lr": 0.0}, {"lr": 1e-2}),
    ],
    ids=["betas", "rates", "no-rate"],
)
def test_groups_with_settings_of_their_own_are_no_finding(first, last, tmp_path):
    loop = in_groups(first, last)
    guarded(loop, tmp_path, epochs=4)
    assert incidents(tmp_path) == []
    assert_same(loop, bare(in_groups(first, last), epochs=4))


@pytest.mark.parametrize("rate", [0.0, 1e-4])
def test_a_weight_is_held_to_the_rate_of_its_own_group(rate, tmp_path):
    loop = in_groups({"lr": rate}, {"lr": 0.5})

    def harm(net, _out):
        with torch.no_grad():
            net.first.weight.mul_(-2)  # no more than the other group could do

    plant(loop.net, 23, harm)
    guarded(loop, tmp_path, epochs=3)
    assert any("such as first.weight" in told for told in notes(tmp_path, "state-unexplained"))
    assert_same(loop, bare(in_groups({"lr": rate}, {"lr": 0.5}), epochs=3))
