"""Norms and scaling: torch's bits, no overflow in half precision, no waits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from self_healing.tensors.norms import (
    Norms,
    clip_coefficient,
    parameters_of,
    per_tensor_norms,
    scale_,
    total_norm,
)

pytestmark = pytest.mark.torch


def random_grads(seed, *, dtypes=(torch.float32,), count=7, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(), (1,), (17,), (5, 9), (64, 33), (3, 4, 5), (1000,)][:count]
    return [
        (torch.randn(shape, generator=generator) * size).to(dtypes[i % len(dtypes)]) for i, shape in enumerate(shapes)
    ]


def as_parameters(grads):
    parameters = []
    for grad in grads:
        parameters.append(torch.nn.Parameter(torch.zeros_like(grad)))
        parameters[-1].grad = grad.clone()
    return parameters


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), (torch.bfloat16, torch.float32)], ids=str)
def test_the_norm_and_the_scaling_are_torchs_bit_for_bit(dtypes):
    for seed in range(60):
        grads = random_grads(seed, dtypes=dtypes, size=10.0 ** (seed % 7 - 3))
        parameters = as_parameters(grads)
        expected = clip_grad_norm_(parameters, 1.0)
        norms = Norms(grads)
        assert torch.equal(norms.as_torch, expected)
        assert norms.as_torch.dtype == expected.dtype
        norms.scale_(clip_coefficient(norms.as_torch, 1.0))
        assert all(torch.equal(p.grad, g) for p, g in zip(parameters, grads, strict=True))


def test_sparse_gradients_are_measured_and_scaled_as_what_they_stand_for():
    embedding, linear = torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 2)
    linear(embedding(torch.tensor([1, 5, 1, 7]))).square().sum().backward()
    grads = [embedding.weight.grad, linear.weight.grad, linear.bias.grad]
    assert not grads[0].is_coalesced()
    dense = [grad.to_dense().clone() for grad in grads]
    norms, expected = Norms(grads), Norms(dense)
    assert torch.allclose(norms.each, expected.each)
    assert torch.allclose(norms.total, expected.total)
    assert not grads[0].is_coalesced(), "to measure them must not change them"
    for each in (norms, expected):
        each.scale_(torch.tensor(0.5))
        each.scale_each_(torch.tensor([0.5, 2.0, 3.0]))
    assert all(torch.equal(ours.to_dense(), theirs) for ours, theirs in zip(grads, dense, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_in_half_precision_is_torchs_for_every_tensor(dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 3000, (3000,), generator=generator).tolist()
    grads = [(0.1 * torch.randn(size, generator=generator)).to(dtype) for size in sizes]
    rounded = Norms(grads)._parts[0].as_torch
    assert torch.equal(rounded, torch.stack(torch._foreach_norm(grads, 2.0)))


def test_half_precision_is_measured_in_single_precision():
    grads = [torch.full((1000,), 60000.0, dtype=torch.float16), torch.ones(3, dtype=torch.float16)]
    norm = total_norm(grads)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(60000 * 1000**0.5, rel=1e-3)
    assert clip_grad_norm_(as_parameters(grads), 1.0).isinf()


def test_double_precision_is_kept():
    grads = random_grads(1, dtypes=(torch.float64,))
    assert torch.equal(total_norm(grads), clip_grad_norm_(as_parameters(grads), 1.0))
    assert total_norm(grads).dtype == torch.float64


def test_norms_of_single_tensors_come_in_the_order_given():
    grads = random_grads(3, dtypes=(torch.float32, torch.bfloat16, torch.float64))
    expected = torch.stack([grad.double().norm() for grad in grads])
    torch.testing.assert_close(per_tensor_norms(grads).double(), expected, rtol=1e-6, atol=0)
    each = torch.arange(1.0, 8.0)
    scaled = copy.deepcopy(grads)
    Norms(scaled).scale_each_(each)
    for before, after, factor in zip(grads, scaled, each, strict=True):
        assert torch.equal(after, before * factor)


def test_no_gradients_have_norm_zero():
    assert total_norm([]).item() == 0.0
    assert total_norm([]).shape == ()
    assert per_tensor_norms([]).shape == (0,)
    scale_([], torch.tensor(0.5))


def test_nothing_waits_for_the_device(no_host_waits):
    grads = random_grads(0, dtypes=(torch.float32, torch.bfloat16))
    with no_host_waits():
        total_norm(grads)
        per_tensor_norms(grads)
        scale_(grads, torch.ones(()))
        Norms(grads).scale_each_(torch.ones(len(grads)))


def test_the_counter_of_waits_counts(no_host_waits):
    with pytest.raises(AssertionError, match="waits"), no_host_waits():
        torch.ones(()).item()
    with pytest.raises(AssertionError, match="waits"), no_host_waits():
        bool(torch.ones(()) > 0)


def test_a_shared_parameter_is_taken_once():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert len(parameters_of(model)) == 3
    weight = model[0].weight
    assert len(parameters_of([weight, weight])) == 1
    assert parameters_of(weight) == [weight]


def test_parameters_of_a_model_come_in_torchs_order():
    class WithHoles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(2, 2, bias=False)
            self.nothing = None
            self.register_parameter("absent", None)
            self.own = torch.nn.Parameter(torch.zeros(1))
            self.several = torch.nn.ParameterList([torch.zeros(1), torch.zeros(2)])
            self.module = None
            self.add_module("gone", None)
            self.again = self.last
            self.rest = torch.nn.Sequential(torch.nn.LayerNorm(2), torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1)}))

    class Elsewhere(torch.nn.Linear):
        def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
            yield prefix, self.weight

    model, special = WithHoles(), torch.nn.Sequential(Elsewhere(2, 2))
    for each in (model, special, special[0]):
        found, expected = parameters_of(each), list(each.parameters())
        assert len(found) == len(expected)
        assert all(a is b for a, b in zip(found, expected, strict=True))
    assert len(parameters_of(special[0])) == 1


def test_the_norm_of_sharded_gradients_is_a_plain_tensor():
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        plain = random_grads(5)[2:]
        grads = [distribute_tensor(grad.clone(), mesh, [Shard(0)]) for grad in plain]
        assert type(total_norm(grads)) is torch.Tensor
        assert torch.equal(total_norm(grads), total_norm(plain))
        assert torch.equal(total_norm([*grads[:2], *plain[2:]]), total_norm([*plain[:2], *plain[2:]]))
        scale_(grads, torch.tensor(0.25))
        assert all(torch.equal(g.full_tensor(), p * 0.25) for g, p in zip(grads, plain, strict=True))
    finally:
        torch.distributed.destroy_process_group()
