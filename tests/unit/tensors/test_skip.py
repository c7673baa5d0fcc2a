"""Skipping a step: weights, moments and step count stay as they are, whatever the optimizer."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing.tensors.skip import SkippingOptimizer, step_unless, way_to_skip

pytestmark = pytest.mark.torch

FUSED = [
    (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {}),
    (torch.optim.Adagrad, {}),
]
OTHERS = [
    (torch.optim.AdamW, {"weight_decay": 0.1, "foreach": True}),
    (torch.optim.RMSprop, {"momentum": 0.9}),
    (torch.optim.Adafactor, {}),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
]
SKIP, TAKE = torch.ones(()), torch.zeros(())


def everything(optimizer):
    found = {}
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            found[g, p] = parameter.detach().clone()
            for name, value in optimizer.state.get(parameter, {}).items():
                found[g, p, name] = value.clone() if torch.is_tensor(value) else value
    return found


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k] for k in a)


def make(kind, settings):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(n, 3)) for n in (4, 5)]
    return parameters, kind(parameters, lr=0.05, **settings)


def give_gradients(parameters, seed, bad=None):
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)
    if bad is not None:
        parameters[0].grad[1, 1] = bad


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("kind", "settings"), FUSED, ids=str)
def test_a_fused_optimizer_skips_on_the_device(kind, settings, bad, no_host_waits):
    parameters, optimizer = make(kind, {**settings, "fused": True})
    skipping = SkippingOptimizer(optimizer)
    if kind is torch.optim.Adagrad and not hasattr(optimizer, "_step_supports_amp_scaling"):
        pytest.skip("the Adagrad of this torch does not look at found_inf")
    assert skipping.way == "fused"
    for seed in range(3):
        give_gradients(parameters, seed)
        skipping.step_unless(TAKE, optimizer.step)
    before = everything(optimizer)
    give_gradients(parameters, 9, bad)
    with no_host_waits():
        skipping.step_unless(SKIP, optimizer.step)
    assert same(before, everything(optimizer))
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize(("kind", "settings"), FUSED, ids=str)
def test_steps_that_are_taken_or_skipped_first_leave_a_clean_run(kind, settings):
    stock_parameters, stock = make(kind, {**settings, "fused": True})
    parameters, optimizer = make(kind, {**settings, "fused": True})
    skipping = SkippingOptimizer(optimizer)
    give_gradients(parameters, 99, math.nan)
    skipping.step_unless(SKIP, optimizer.step)
    for seed in range(5):
        give_gradients(stock_parameters, seed)
        give_gradients(parameters, seed)
        stock.step()
        skipping.step_unless(TAKE, optimizer.step)
        assert same(everything(stock), everything(optimizer))


@pytest.mark.parametrize(("kind", "settings"), OTHERS, ids=str)
def test_other_optimizers_skip_by_dropping_the_gradients(kind, settings):
    parameters, optimizer = make(kind, settings)
    skipping = SkippingOptimizer(optimizer)
    assert skipping.way == "host"
    give_gradients(parameters, 1)
    skipping.step_unless(TAKE, optimizer.step)
    before = everything(optimizer)
    give_gradients(parameters, 2, math.nan)
    skipping.step_unless(SKIP, optimizer.step)
    assert same(before, everything(optimizer))
    give_gradients(parameters, 3)
    skipping.step_unless(TAKE, optimizer.step)
    assert not same(before, everything(optimizer))


def test_one_group_that_is_not_fused_makes_it_the_hosts_business():
    parameters, optimizer = make(torch.optim.AdamW, {"fused": True})
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "fused": False})
    assert way_to_skip(optimizer) == "host"
    give_gradients(parameters, 1)
    step_unless(optimizer, TAKE, optimizer.step)


def test_momentum_that_cannot_be_started_beforehand_needs_one_step_first():
    parameters, optimizer = make(torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "fused": True})
    give_gradients(parameters, 1)
    assert way_to_skip(optimizer) == "host"
    step_unless(optimizer, TAKE, optimizer.step)
    give_gradients(parameters, 2)
    assert way_to_skip(optimizer) == "fused"


def test_what_a_grad_scaler_set_is_left_alone():
    parameters, optimizer = make(torch.optim.AdamW, {"fused": True})
    give_gradients(parameters, 1)
    optimizer.found_inf = scalers_own = TAKE.clone()
    optimizer.grad_scale = scale = torch.tensor(2.0)
    step_unless(optimizer, SKIP, optimizer.step)
    assert optimizer.found_inf is scalers_own
    assert optimizer.grad_scale is scale
    assert optimizer.state[parameters[0]]["step"].item() == 1.0


def test_attributes_are_taken_away_after_an_error():
    _, optimizer = make(torch.optim.AdamW, {"fused": True})

    def fails():
        assert optimizer.found_inf is SKIP
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        step_unless(optimizer, SKIP, fails)
    assert not hasattr(optimizer, "found_inf")


def test_the_attributes_go_on_the_optimizer_inside_a_wrapper():
    parameters, optimizer = make(torch.optim.AdamW, {"fused": True})
    wrapper = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    wrapper.optimizer = optimizer
    give_gradients(parameters, 1, math.nan)
    before = parameters[1].detach().clone()
    SkippingOptimizer(wrapper).step_unless(SKIP, optimizer.step)
    assert torch.equal(parameters[1], before)
    parameters, wrapper.optimizer = make(torch.optim.RMSprop, {})
    give_gradients(parameters, 1, math.nan)
    SkippingOptimizer(wrapper).step_unless(SKIP, wrapper.optimizer.step)
    assert all(p.grad is None and p.isfinite().all() for p in parameters)
