"""Broken weights from sound neighbours: which layers count, what is replaced, and when nothing is done."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from self_healing.tensors.neighbours import NoNeighboursError, average_broken_layers  # noqa: E402

pytestmark = pytest.mark.torch


class Block(torch.nn.Module):
    def __init__(self, wide=4, experts=0):
        super().__init__()
        self.up = torch.nn.Linear(4, wide)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(experts))


class Model(torch.nn.Module):
    def __init__(self, widths=(4, 4, 4, 4, 4), **more):
        super().__init__()
        self.embed = torch.nn.Embedding(3, 4)
        self.blocks = torch.nn.ModuleList(Block(width, **more) for width in widths)


def trained(model, kind=torch.optim.AdamW, **options):
    """Return an optimizer that has taken three steps, so that it holds moments."""
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return optimizer


def spoil(model, *names):
    for name in names:
        model.get_parameter(name).data.view(-1)[1] = math.nan


def weight(model, layer):
    return model.blocks[layer].up.weight.detach().clone()


@pytest.mark.parametrize(
    ("broken", "neighbours"), [((2,), (1, 3)), ((0,), (1,)), ((4,), (3,)), ((1, 2), (0, 3)), ((0, 1), (2,))]
)
def test_the_nearest_sound_layer_on_each_side_is_averaged(broken, neighbours):
    model = Model()
    optimizer, before = trained(model), copy.deepcopy(model)
    spoil(model, *(f"blocks.{layer}.up.weight" for layer in broken))
    done = average_broken_layers(model, optimizer)
    assert [each.layer for each in done] == [f"blocks.{layer}" for layer in broken]
    wanted = sum(weight(before, each) for each in neighbours) / len(neighbours)
    for layer in broken:
        torch.testing.assert_close(weight(model, layer), wanted)
    assert all(set(each.neighbours) == {f"blocks.{layer}" for layer in neighbours} for each in done)


def test_only_what_is_broken_is_touched_and_its_moments_begin_anew_while_steps_are_counted_on():
    model = Model()
    optimizer, before = trained(model), copy.deepcopy(model)
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    spoil(model, "blocks.2.up.weight")
    average_broken_layers(model, optimizer)
    for place, (name, parameter) in enumerate(model.named_parameters()):
        state = optimizer.state[parameter]
        assert float(state["step"]) == 3.0
        if name == "blocks.2.up.weight":
            assert not state["exp_avg"].any()
            assert not state["exp_avg_sq"].any()
        else:
            assert torch.equal(parameter, before.get_parameter(name))
            assert torch.equal(state["exp_avg"], moments[place]["exp_avg"])


def test_moments_that_are_not_finite_elsewhere_would_break_the_next_step_and_begin_anew_too():
    model = Model()
    optimizer = trained(model)
    spoil(model, "blocks.2.up.weight")
    optimizer.state[model.blocks[0].up.weight]["exp_avg_sq"][0, 0] = math.inf
    average_broken_layers(model, optimizer)
    assert not optimizer.state[model.blocks[0].up.weight]["exp_avg_sq"].any()
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_moments_packed_in_a_way_of_their_own_are_begun_anew_by_their_optimizer():
    model = Model()
    optimizer = trained(model, torch.optim.Adafactor)
    spoil(model, "blocks.2.up.weight")
    average_broken_layers(model, optimizer)
    assert not optimizer.state[model.blocks[2].up.weight]
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_half_precision_does_not_overflow_in_the_sum():
    model = Model().to(torch.float16)
    for block in model.blocks:
        block.up.weight.data.fill_(60000.0)
    optimizer = torch.optim.SGD(model.parameters())
    spoil(model, "blocks.2.up.weight")
    average_broken_layers(model, optimizer)
    assert (weight(model, 2) == 60000.0).all()


def test_layers_of_another_shape_are_no_neighbours():
    model = Model(widths=(4, 6, 4, 6, 4))
    optimizer, before = trained(model), copy.deepcopy(model)
    spoil(model, "blocks.2.up.weight")
    (done,) = average_broken_layers(model, optimizer)
    assert done.neighbours == ("blocks.0", "blocks.4")
    torch.testing.assert_close(weight(model, 2), (weight(before, 0) + weight(before, 4)) / 2)


def test_an_expert_is_mended_from_the_same_expert_of_other_layers():
    model = Model(experts=4)
    optimizer, before = trained(model), copy.deepcopy(model)
    spoil(model, "blocks.2.experts.1.weight")
    average_broken_layers(model, optimizer)
    wanted = (before.blocks[1].experts[1].weight + before.blocks[3].experts[1].weight) / 2
    torch.testing.assert_close(model.blocks[2].experts[1].weight, wanted)


@pytest.mark.parametrize(
    ("widths", "broken", "because"),
    [
        ((4, 4, 4, 4), ("embed.weight",), "embed.weight belongs to no stack"),
        ((4, 4, 4, 4), ("blocks.1.up.weight", "embed.weight"), "embed.weight belongs to no stack"),
        ((4, 4, 6, 4), ("blocks.2.up.weight",), "blocks.2.up.weight belongs to no stack"),
        ((4,), ("blocks.0.up.weight",), "belongs to no stack"),
        ((4, 4, 4), ("blocks.0.up.weight", "blocks.2.up.bias"), "2 of the 3 layers of blocks are broken"),
        ((4, 4), (), "all weights are finite"),
    ],
)
def test_what_neighbours_do_not_know_leaves_everything_as_it_is(widths, broken, because):
    model = Model(widths)
    optimizer, before = trained(model), copy.deepcopy(model)
    spoil(model, *broken)
    with pytest.raises(NoNeighboursError, match=because):
        average_broken_layers(model, optimizer)
    for name, parameter in model.named_parameters():
        assert name in broken or torch.equal(parameter, before.get_parameter(name))
        assert optimizer.state[parameter]["exp_avg"].any()


def test_half_of_a_stack_may_be_broken():
    model = Model((4, 4))
    optimizer, before = trained(model), copy.deepcopy(model)
    spoil(model, "blocks.1.up.weight")
    average_broken_layers(model, optimizer)
    assert torch.equal(weight(model, 1), weight(before, 0))


def test_one_weight_shared_by_all_layers_has_no_sound_neighbour():
    model = Model()
    for block in model.blocks:
        block.up.weight = model.blocks[0].up.weight
    optimizer = trained(model)
    spoil(model, "blocks.0.up.weight")
    with pytest.raises(NoNeighboursError, match="5 of the 5 layers"):
        average_broken_layers(model, optimizer)
