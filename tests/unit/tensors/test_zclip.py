"""ZClip: the published behaviour for finite norms, and none of its harm for others."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing.tensors.zclip import ZClip

pytestmark = pytest.mark.torch

SETTINGS = [
    {},
    {"max_grad_norm": None},
    {"max_grad_norm": None, "clip_option": "mean"},
    {"max_grad_norm": None, "mode": "percentile"},
    {"max_grad_norm": None, "clip_factor": 0.7, "skip_update_on_spike": True},
    {"mode": "percentile", "skip_update_on_spike": True, "z_threshold": 1.5, "alpha": 0.9, "warmup_steps": 5},
]


class Formula:
    """The formulas, in host numbers; returns (norm afterwards, z)."""

    def __init__(self, *, alpha=0.97, z_threshold=2.5, max_grad_norm=1.0, mode="zscore", clip_option="adaptive_scaling",
                 clip_factor=1.0, warmup_steps=25, skip_update_on_spike=False):  # fmt: skip
        self.alpha, self.limit, self.most, self.mode, self.option = alpha, z_threshold, max_grad_norm, mode, clip_option
        self.factor, self.warmup, self.skips = clip_factor, warmup_steps, skip_update_on_spike
        self.first, self.mean, self.var = [], 0.0, 0.0

    def see(self, g):
        if len(self.first) < self.warmup:
            self.first.append(g)
            if len(self.first) == self.warmup:
                self.mean = math.fsum(self.first) / self.warmup
                self.var = math.fsum((x - self.mean) ** 2 for x in self.first) / self.warmup
            return self._at_most(g, g)
        std = math.sqrt(self.var)
        z = (g - self.mean) / (std + 1e-6)
        value = g
        if self.mode == "percentile":
            value = min(g, self.mean + self.limit * std)
        elif z > self.limit:
            adaptive = (self.mean + std * self.limit**2 / z) * self.factor
            value = adaptive if self.option == "adaptive_scaling" else self.mean
        if not (self.skips and value != g):
            self.mean = self.alpha * self.mean + (1 - self.alpha) * value
            self.var = self.alpha * self.var + (1 - self.alpha) * (value - self.mean) ** 2
        return self._at_most(g, value)

    def _at_most(self, g, value):
        limit = value if self.most is None else min(value, self.most)
        return g * limit / (g + 1e-6) if g > limit else g


def parameter(values):
    p = torch.nn.Parameter(torch.zeros(len(values)))
    p.grad = torch.tensor(values)
    return p


def norms(seed, count, level=1.0):
    generator = torch.Generator().manual_seed(seed)
    made = (level * torch.exp(0.3 * torch.randn(count, generator=generator))).tolist()
    for i in range(40, count, 37):
        made[i] *= 8.0
    return made


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_follows_the_published_formulas(settings):
    ours, theirs = ZClip(**settings), Formula(**settings)
    for g in norms(1, 200):
        p = parameter([0.6 * g, 0.8 * g])
        norm = ours.step([p])
        expected = theirs.see(norm.item())
        assert p.grad.norm().item() == pytest.approx(expected, rel=1e-5)
        assert ours.clipped_norm.item() == pytest.approx(expected, rel=1e-5)
        assert torch.equal(ours.raw_norm, norm)
    assert ours.mean.item() == pytest.approx(theirs.mean, rel=1e-9)
    assert ours.var.item() == pytest.approx(theirs.var, rel=1e-9)
    assert ours.total_clips.item() >= 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 10, 60])
def test_a_norm_that_is_not_finite_changes_nothing(bad, at):
    clean, hit = ZClip(), ZClip()
    for i, g in enumerate(norms(2, 90)):
        if i == at:
            p = parameter([1.0, bad, 3.0])
            hit.step([p])
            assert p.grad[0].item() == 1.0
            assert p.grad[2].item() == 3.0
            assert hit.z_score.item() == 0.0
        a, b = parameter([g]), parameter([g])
        clean.step([a])
        hit.step([b])
        assert torch.equal(a.grad, b.grad)
    assert all(torch.equal(clean.state_dict()[k], v) for k, v in hit.state_dict().items())
    spike = parameter([1000.0])
    hit.step([spike])
    assert spike.grad.item() <= 1.0


def test_one_huge_norm_in_the_warm_up_does_not_overflow_the_variance():
    zclip = ZClip(warmup_steps=3)
    for g in (1.0, 3e18, 1.0, 1.0):
        zclip.step([parameter([g])])
    assert math.isfinite(zclip.var.item())


def test_nothing_waits_for_the_device(no_host_waits):
    model = torch.nn.Linear(5, 3)
    with no_host_waits():
        for settings in SETTINGS:
            zclip = ZClip(**settings)
            for _ in range(3):
                model(torch.ones(2, 5)).sum().backward()
                zclip.step(model)


def test_its_state_continues_bit_for_bit():
    first, series = ZClip(warmup_steps=20), norms(3, 120)
    for g in series[:13]:
        first.step([parameter([g])])
    for cut in (14, 60):
        second = ZClip(warmup_steps=20)
        second.load_state_dict(first.state_dict())
        for g in series[cut:]:
            a, b = parameter([g]), parameter([g])
            first.step([a])
            second.step([b])
            assert torch.equal(a.grad, b.grad)
        assert all(torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items())


def test_no_gradients_are_fine():
    assert ZClip().step(torch.nn.Linear(2, 2)).item() == 0.0


@pytest.mark.parametrize(
    "wrong", [{"mode": "x"}, {"clip_option": "median"}, {"alpha": 1.0}, {"warmup_steps": 0}], ids=str
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ZClip(**wrong)
