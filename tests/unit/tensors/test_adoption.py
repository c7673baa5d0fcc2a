"""A model and an optimizer take over what another process has left: by name, bit for bit, or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import pytest
import torch

from self_healing.tensors import adoption
from self_healing.tensors.adoption import (
    alike,
    fill_module,
    fill_optimizer,
    module_differences,
    optimizer_differences,
    sampled_fingerprint,
    told,
)

pytestmark = pytest.mark.torch


class Left:
    """A state by name, as a reader of shared memory gives it."""

    def __init__(self, tensors, device="cpu"):
        self.values = tensors
        self.tensors = {
            name: SimpleNamespace(
                dtype=str(value.dtype).removeprefix("torch."), shape=list(value.shape), stride=None,
                nbytes=value.numel() * value.element_size(), device=device,
            )
            for name, value in tensors.items()
        }  # fmt: skip

    def read_into(self, name, target):
        target.cast("B")[:] = self.values[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def made(width=3):
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def names_of(model):
    return {parameter: name for name, parameter in model.named_parameters()}


def trained(model, optimizer):
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    tensors = {name: value.detach().clone() for name, value in (*model.named_parameters(), *model.named_buffers())}
    for parameter, name in names_of(model).items():
        tensors |= {f"optimizer.{key}/{name}": v.clone() for key, v in optimizer.state[parameter].items()}
    return Left(tensors)


def test_a_new_model_and_a_new_optimizer_go_on_like_the_old_ones():
    torch.manual_seed(0)
    old, old_optimizer = made()
    left = trained(old, old_optimizer)
    new, optimizer = made()
    groups = [{"params": list(names_of(new).values()), "lr": 0.05, "betas": (0.8, 0.9)}]
    assert module_differences(new, left.tensors, only_trainable=False, others=("optimizer.",)) == []
    assert optimizer_differences(optimizer, names_of(new), groups) == []
    identity = [id(p) for p in new.parameters()]
    fill_module(new, left)
    fill_optimizer(optimizer, names_of(new), left, {"groups": groups, "others": {"0.weight": {"count": 7}}})
    assert [id(p) for p in new.parameters()] == identity
    for name, value in (*new.named_parameters(), *new.named_buffers()):
        assert torch.equal(value, left.values[name]), name
    for parameter, name in names_of(new).items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[parameter][key], left.values[f"optimizer.{key}/{name}"])
    assert optimizer.state[new[0].weight]["count"] == 7
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.05, (0.8, 0.9))


def test_moments_keep_their_type():
    model = torch.nn.Linear(2, 1).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    left = Left({"optimizer.exp_avg/weight": torch.tensor([[0.123456789, 1e-30]])})
    groups = [{"params": ["weight", "bias"]}]
    fill_optimizer(optimizer, names_of(model), left, {"groups": groups, "others": {}})
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], left.values["optimizer.exp_avg/weight"])


def test_every_difference_is_named():
    left = trained(*made())
    wider, _ = made(4)
    found = module_differences(wider, left.tensors, only_trainable=False, others=("optimizer.",))
    assert "0.weight has shape 4x2 and type float32, and had 3x2 and float32" in found
    shorter = made()[0][:2]
    assert module_differences(shorter, left.tensors, only_trainable=False, others=("optimizer.",)) == [
        "2.weight is missing",
        "2.bias is missing",
    ]
    longer = torch.nn.Sequential(*made()[0], torch.nn.Linear(1, 1))
    found = module_differences(longer, left.tensors, only_trainable=False, others=("optimizer.",))
    assert found == ["3.weight is new", "3.bias is new"]
    assert told(["a", "b", "c", "d", "e", "f"]) == "a; b; c; d; and 2 more"


def test_other_groups_are_a_difference():
    model, optimizer = made()
    names = list(names_of(model).values())
    assert "had 2" in optimizer_differences(optimizer, names_of(model), [{"params": names}] * 2)[0]
    assert optimizer_differences(optimizer, names_of(model), [{"params": names[::-1]}]) == [
        "group 0 of the optimizer holds other parameters"
    ]


def test_frozen_weights_are_recognised():
    torch.manual_seed(1)
    weights = {"a": torch.randn(100, 7), "b": torch.randn(3).bfloat16()}
    before = sampled_fingerprint(weights.items())
    assert sampled_fingerprint({name: each.clone() for name, each in weights.items()}.items()) == before
    assert sampled_fingerprint({**weights, "a": weights["a"] + 1e-3}.items()) != before
    assert sampled_fingerprint({"a": weights["a"].view(7, 100), "b": weights["b"]}.items()) != before
    assert sampled_fingerprint({"c": weights["a"], "b": weights["b"]}.items()) != before


def test_containers_are_of_the_kind_that_is_there():
    own = {"train": defaultdict(list), "log": deque(maxlen=2)}
    made_alike = alike(own, {"train": {"loss": [1.0]}, "log": [1, 2, 3]})
    assert made_alike["train"]["new"] == []
    assert made_alike["train"]["loss"] == [1.0]
    assert made_alike["log"] == deque([2, 3])
    assert made_alike["log"].maxlen == 2
    nested = defaultdict(lambda: defaultdict(list))
    assert alike(nested, {"train": {"loss": [2.0]}})["train"]["other"] == []
    assert alike(None, {"a": 1}) == {"a": 1}
    (milestones,) = alike([Counter([3])], [{20: 1, 30: 2}])
    assert type(milestones) is Counter
    assert milestones == {20: 1, 30: 2}
    assert adoption.alike((1, 2), [3, 4]) == (3, 4)
