"""AdaGC: the published formulas tensor by tensor, and none of their harm."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing.tensors.adagc import AdaGC

pytestmark = pytest.mark.torch

SHAPES = [(3, 4), (7,), (2, 2, 2), ()]


def parameters(seed, missing=(), size=1.0):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i, shape in enumerate(SHAPES):
        p = torch.nn.Parameter(torch.zeros(shape))
        grad = torch.randn(shape, generator=generator) * size * torch.exp(torch.randn((), generator=generator))
        p.grad = None if i in missing else grad
        made.append(p)
    return made


def test_it_follows_the_published_formulas():
    ours = AdaGC(warmup_steps=10)
    gammas = [math.inf] * len(SHAPES)
    for t in range(60):
        made = parameters(t)
        each = [p.grad.double().norm().item() for p in made]
        before = [p.grad.clone() for p in made]
        norm = ours.step(made)
        total = math.sqrt(math.fsum(x * x for x in each))
        assert norm.item() == pytest.approx(total, rel=1e-6)
        for i, p in enumerate(made):
            if t < 10:
                h = min(1.0 / total, 1.0)
                gammas[i] = min(gammas[i], h * each[i])
            else:
                h = min(1.05 * gammas[i] / each[i], 1.0)
                gammas[i] = 0.98 * gammas[i] + 0.02 * h * each[i]
            torch.testing.assert_close(p.grad, before[i] * h, rtol=1e-5, atol=1e-9)
    assert ours.gammas.tolist() == pytest.approx(gammas, rel=1e-5)
    assert ours.steps.item() == 60


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 4, 15])
def test_a_norm_that_is_not_finite_changes_nothing(bad, at):
    clean, hit = AdaGC(warmup_steps=8), AdaGC(warmup_steps=8)
    for t in range(25):
        if t == at:
            made = parameters(100)
            made[1].grad[3] = bad
            before = [p.grad.clone() for p in made]
            hit.step(made)
            assert all(
                torch.equal(
                    p.grad,
                    b,
                )
                for p, b in zip(made, before, strict=True)
                if b.isfinite().all()
            )
            assert torch.equal(made[1].grad[:3], before[1][:3])
        a, b = parameters(t), parameters(t)
        clean.step(a)
        hit.step(b)
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b, strict=True))
    assert torch.equal(clean.gammas, hit.gammas)


def test_a_gradient_of_zero_does_not_silence_its_tensor():
    adagc = AdaGC(warmup_steps=5)
    for t in range(12):
        made = parameters(t)
        if t in (0, 8):
            made[0].grad.zero_()
        adagc.step(made)
    assert made[0].grad.abs().max().item() > 0.0
    assert (adagc.gammas > 0.0).all()
    assert adagc.gammas.isfinite().all()


def test_parameters_without_a_gradient_keep_their_average():
    adagc = AdaGC(warmup_steps=3)
    for t in range(6):
        adagc.step(parameters(t))
    before = adagc.gammas.clone()
    adagc.step(parameters(7, missing=(1, 3)))
    assert torch.equal(adagc.gammas[[1, 3]], before[[1, 3]])
    assert not torch.equal(adagc.gammas[[0, 2]], before[[0, 2]])
    adagc.step(parameters(8, missing=(0, 1, 2, 3)))
    assert adagc.steps.item() == 7


def test_a_parameter_that_joins_after_the_warm_up_starts_from_its_own_norm():
    adagc = AdaGC(warmup_steps=3)
    for t in range(5):
        adagc.step(parameters(t, missing=(1,)))
    made = parameters(9)
    expected = made[1].grad.norm()
    adagc.step(made)
    assert adagc.gammas[1].item() == pytest.approx(expected.item())


def test_its_state_continues_bit_for_bit_and_belongs_to_its_shapes():
    first = AdaGC(warmup_steps=6)
    for t in range(9):
        first.step(parameters(t, missing=(2,) if t % 2 else ()))
    second = AdaGC(warmup_steps=6)
    second.load_state_dict(first.state_dict())
    for t in range(9, 20):
        a, b = parameters(t), parameters(t)
        first.step(a)
        second.step(b)
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(a, b, strict=True))
    assert torch.equal(first.gammas, second.gammas)
    third = AdaGC()
    third.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="4 tensors"):
        third.step(parameters(0)[:3])
    with pytest.raises(ValueError, match="shape"):
        third.step(parameters(0)[::-1])
    with pytest.raises(TypeError, match="AdaGC"):
        third.load_state_dict({"gammas": [1.0], "steps": 3, "shapes": []})
    with pytest.raises(ValueError, match="damaged"):
        third.load_state_dict({**first.state_dict(), "shapes": []})


def test_nothing_waits_for_the_device(no_host_waits):
    adagc = AdaGC(warmup_steps=2)
    sets = [parameters(t, missing=(1,) if t % 2 else ()) for t in range(6)]
    with no_host_waits():
        for made in sets:
            adagc.step(made)
