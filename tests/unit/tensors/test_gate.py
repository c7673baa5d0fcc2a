"""The gate: invisible in a healthy run, harmless at NaN, quick to accept what lasts."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from self_healing.tensors.adagc import AdaGC
from self_healing.tensors.baseline import CLIP_Z, READY, LogNormBaseline
from self_healing.tensors.fused import READING
from self_healing.tensors.gate import GradientGate
from self_healing.tensors.zclip import ZClip

pytestmark = pytest.mark.torch


def model_with_gradients(seed, *, dtype=torch.float32, size=1.0, missing=False):
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for shape in [(6, 5), (5,), (3, 3, 2), (), (400,)]:
        p = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        p.grad = (torch.randn(shape, generator=generator) * size).to(dtype)
        parameters.append(p)
    if missing:
        parameters[2].grad = None
    return parameters


def grads_of(parameters):
    return [p.grad for p in parameters]


def one(norm):
    return [torch.tensor([0.6 * norm, 0.8 * norm])]


def settled(seed=0, count=60, sigma=0.1, **settings):
    gate = GradientGate(**settings)
    generator = torch.Generator().manual_seed(seed)
    for x in (sigma * torch.randn(count, generator=generator)).tolist():
        gate.judge(one(math.exp(x)), None)
    return gate


@pytest.mark.parametrize("max_norm", [1.0, 25.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_healthy_run_is_clipped_as_torch_clips_it_bit_for_bit(max_norm, dtype):
    gate = GradientGate()
    for seed in range(300):
        size = math.exp(0.3 * math.sin(seed))
        stock = model_with_gradients(seed, dtype=dtype, size=size, missing=seed % 7 == 0)
        ours = model_with_gradients(seed, dtype=dtype, size=size, missing=seed % 7 == 0)
        expected = clip_grad_norm_(stock, max_norm)
        norm = gate.judge(grads_of(ours), max_norm)
        assert torch.equal(norm.to(dtype), expected) or dtype != torch.float32
        assert not gate.is_outlier
        for a, b in zip(stock, ours, strict=True):
            assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("max_norm", [None, 0.0])
def test_without_a_limit_healthy_gradients_stay_as_they_are(max_norm):
    gate = GradientGate()
    for seed in range(40):
        ours = model_with_gradients(seed)
        before = [g.clone() for g in grads_of(ours)]
        gate.judge(grads_of(ours), max_norm)
        assert all(torch.equal(a, b) for a, b in zip(before, grads_of(ours), strict=True))
        assert gate.coefficient.item() == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("settings", [{}, {"clip_outliers": False}, {"always": "z"}, {"per_tensor": "a"}], ids=str)
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_norm_that_is_not_finite_touches_neither_gradients_nor_baseline(bad, settings, max_norm):
    chosen = {k: {"z": ZClip, "a": AdaGC}[v]() if isinstance(v, str) else v for k, v in settings.items()}
    gate = settled(**chosen)
    before = gate.state_dict()
    grads = [torch.tensor([3.0, bad])]
    norm = gate.judge(grads, max_norm)
    assert not norm.isfinite()
    assert grads[0][0].item() == 3.0
    assert gate.found_inf.item() == 1.0
    assert not gate.is_outlier
    assert gate.coefficient.item() == 1.0
    assert str(before) == str(gate.state_dict())
    assert torch.equal(before["baseline"], gate.state_dict()["baseline"])
    gate.judge(one(1.0), max_norm)
    assert gate.found_inf.item() == 0.0


def test_a_float16_norm_that_only_torch_overflows_is_finite():
    grads = [torch.full((1000,), 6000.0, dtype=torch.float16)]
    gate = GradientGate()
    gate.judge(grads, 1.0)
    assert gate.found_inf.item() == 0.0
    assert grads[0].float().norm().item() == pytest.approx(1.0, rel=0.02)


def test_a_finite_outlier_is_brought_down_by_the_reciprocal_rule():
    gate = settled()
    state = gate.state.clone()
    level, scale = state[0].item() + max(state[1].item(), 0.0), state[2].item()
    grads = one(50.0)
    assert gate.judge(grads, None).item() == pytest.approx(50.0)
    z = (math.log(50.0) - level) / scale
    expected = math.exp(level + CLIP_Z**2 * scale / z)
    assert gate.is_outlier
    assert gate.z.item() == pytest.approx(z, rel=1e-4)
    assert grads[0].norm().item() == pytest.approx(expected, rel=1e-4)
    assert gate.coefficient.item() == pytest.approx(expected / 50.0, rel=1e-4)
    assert gate.typical.item() == pytest.approx(math.exp(level), rel=1e-5)
    assert torch.equal(gate.state[:4], state[:4])  # it did not enter
    small = one(50.0)
    gate.judge(small, 0.3)
    assert small[0].norm().item() == pytest.approx(0.3, rel=1e-4)


def test_below_a_recipe_outliers_are_only_measured():
    gate = settled(clip_outliers=False)
    grads = one(50.0)
    gate.judge(grads, None)
    assert gate.is_outlier
    assert torch.equal(grads[0], one(50.0)[0])
    clipped = one(50.0)
    gate.judge(clipped, 1.0)
    assert clipped[0].norm().item() == pytest.approx(1.0, rel=1e-5)


def test_a_lasting_change_is_accepted_after_three_and_a_spike_then_found_again():
    gate = settled()
    flags = []
    for i in range(12):
        gate.judge(one(20.0 + 0.1 * i), None)
        flags.append(gate.is_outlier.item())
    assert flags == [True] * 3 + [False] * 9
    assert gate.typical.item() == pytest.approx(20.0, rel=0.1)
    gate.judge(one(400.0), None)
    assert gate.is_outlier
    back = []
    for _ in range(6):  # and all the way down again, without a flag
        gate.judge(one(1.0), None)
        back.append(gate.is_outlier.item())
    assert back == [False] * 6
    gate.judge(one(15.0), None)
    assert gate.is_outlier


def test_outliers_that_are_not_in_a_row_never_enter():
    gate = settled()
    for i in range(60):
        gate.judge(one(30.0 if i % 3 else 1.0), None)
        assert gate.is_outlier.item() == bool(i % 3)
    gate = settled()
    for norm in (30.0, math.nan, 30.0, math.inf):  # what is not finite does not end a row, and does not count
        gate.judge(one(norm), None)
    assert gate.typical.item() == pytest.approx(1.0, rel=0.2)
    gate.judge(one(30.0), None)
    gate.judge(one(30.0), None)
    assert gate.typical.item() == pytest.approx(30.0, rel=0.2)


def test_nothing_is_an_outlier_before_it_is_ready():
    gate = GradientGate()
    for _ in range(READY):
        gate.judge(one(0.0), None)  # says nothing and does not count
        gate.judge(one(1.0), None)
        assert gate.z.item() == 0.0
        assert gate.typical.item() == 0.0
    gate.judge(one(30.0), None)
    assert gate.is_outlier


def simulate(logs):
    """Run series through the baseline; return which observations it would flag."""
    flags = []
    for series in logs.exp().tolist():
        baseline = LogNormBaseline()
        flags.append([baseline.judge(norm).is_outlier for norm in series])
    return torch.tensor(flags)


@pytest.mark.parametrize("sigma", [0.1, 0.35, 0.5])
def test_no_false_outlier_in_100000_log_normal_norms(sigma):
    noise = sigma * torch.randn(200, 500, generator=torch.Generator().manual_seed(5))
    assert simulate(noise).sum().item() == 0


def test_the_simulation_finds_what_there_is_to_find():
    noise = 0.1 * torch.randn(50, 100, generator=torch.Generator().manual_seed(5))
    noise[:, 80] += math.log(10.0)
    assert simulate(noise).sum(0).nonzero().tolist() == [[80]]


def test_trends_over_1000_steps_are_no_outliers():
    t = torch.arange(1000) / 1000
    generator = torch.Generator().manual_seed(6)
    series = [
        shape + sigma * torch.randn(1000, generator=generator)
        for shape in (
            3.0 * t,
            -3.0 * t,
            6.9 * t,
            -6.9 * t,
            1.7 * torch.cos(20.0 * t),
            -2.3 * (1 - torch.exp(-50 * t)),
            2.3 * (5.0 * t - 2.5).clamp(0.0, 1.0),
        )
        for sigma in (0.0, 0.02, 0.1, 0.35)
    ]
    assert simulate(torch.stack(series)).sum().item() == 0


def test_a_trend_does_not_widen_the_scale_and_a_rising_one_moves_the_level():
    gate = GradientGate()
    noise = 0.1 * torch.randn(600, generator=torch.Generator().manual_seed(1))
    for i, x in enumerate(noise.tolist()):
        gate.judge(one(math.exp(0.01 * i + x)), None)
    location, drift, scale = gate.state[:3].tolist()
    assert scale == pytest.approx(0.1, rel=0.25)
    assert location + drift == pytest.approx(0.01 * 600, abs=0.15)
    assert drift > 0.2
    assert gate.typical.item() == pytest.approx(math.exp(6.0), rel=0.2)


def test_what_is_less_than_twice_the_typical_norm_is_never_an_outlier():
    gate = settled(sigma=0.0, count=400)
    assert gate.state[2].item() == pytest.approx(0.05)
    gate.judge(one(1.8), None)
    assert gate.z.item() > 10.0
    assert not gate.is_outlier
    gate.judge(one(2.3), None)
    assert gate.is_outlier


def test_early_on_the_scale_is_not_trusted_and_one_wild_norm_does_not_count_for_much():
    gate = settled(sigma=0.0, count=READY)
    gate.judge(one(2.4), None)
    assert not gate.is_outlier
    gate.judge(one(4.5), None)
    assert gate.is_outlier
    gate = settled(sigma=0.0, count=10)
    gate.judge(one(1000.0), None)
    for _ in range(6):
        gate.judge(one(1.0), None)
    assert gate.typical.item() < 1.3


def test_the_first_norm_is_the_first_location():
    gate = GradientGate()
    gate.judge(one(math.exp(8.0)), None)
    assert gate.state[0].item() == pytest.approx(8.0, rel=1e-5)
    assert gate.state[2].item() < 0.5


def test_one_extreme_outlier_among_three_does_not_set_the_level():
    for row in ((20.0, 1000.0, 21.0), (1000.0, 20.0, 21.0), (20.0, 21.0, 1000.0)):
        gate = settled()
        for norm in row:
            gate.judge(one(norm), None)
            assert gate.is_outlier
        gate.judge(one(20.0), None)
        assert gate.typical.item() == pytest.approx(21.0, rel=1e-3)


def test_a_norm_beyond_single_precision_counts_as_not_finite():
    gate = settled()
    gate.judge([torch.tensor([1e39], dtype=torch.float64)], None)
    assert gate.found_inf.item() == 1.0


def test_published_behaviours_take_the_place_of_the_gates_own():
    gate, zclip = settled(always=ZClip(max_grad_norm=None)), None
    zclip = settled(always=ZClip(max_grad_norm=None)).always
    a, b = one(9.0), torch.nn.Parameter(torch.zeros(2))
    b.grad = one(9.0)[0]
    gate.judge(a, None)
    zclip.step([b])
    assert torch.equal(a[0], b.grad)
    c = one(9.0)
    gate.judge(c, 100.0)
    assert c[0].norm().item() < 4.0
    adagc, gate = AdaGC(warmup_steps=2), GradientGate(per_tensor=AdaGC(warmup_steps=2))
    for seed in range(6):
        ours, theirs = model_with_gradients(seed, missing=seed % 2), model_with_gradients(seed, missing=seed % 2)
        gate.judge(grads_of(ours), None)
        adagc.step(theirs)
        for p, q in zip(ours, theirs, strict=True):
            assert (p.grad is None and q.grad is None) or torch.equal(p.grad, q.grad)
    limited = model_with_gradients(9)
    gate.judge(grads_of(limited), 0.01)
    assert torch.cat([g.flatten() for g in grads_of(limited)]).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert gate.coefficient.item() == pytest.approx(0.01 / gate.norm.item(), rel=1e-3)
    with pytest.raises(ValueError, match="choose one"):
        GradientGate(always=ZClip(), per_tensor=AdaGC())


def test_telemetry_is_one_vector_in_the_documented_order():
    gate = settled()
    gate.judge(one(50.0), None)
    values = dict(zip(READING, gate.telemetry().tolist(), strict=True))
    assert values["norm"] == pytest.approx(50.0)
    assert values["coefficient"] == gate.coefficient.item()
    assert values["z"] == gate.z.item()
    assert values["found_inf"] == 0.0
    assert values["is_outlier"] == 1.0
    assert values["typical"] == pytest.approx(1.0, rel=0.2)
    assert gate.telemetry().dtype == torch.float32


@pytest.mark.parametrize("settings", [{}, {"always": "z"}, {"per_tensor": "a"}], ids=str)
def test_its_state_continues_bit_for_bit(settings):
    def build():
        return {k: {"z": ZClip, "a": AdaGC}[v](warmup_steps=10) for k, v in settings.items()}

    first = settled(count=30, **build())
    first.judge(one(40.0), None)  # in the middle of a row of outliers
    second = GradientGate(**build())
    second.load_state_dict(first.state_dict())
    for norm in (41.0, math.nan, 42.0, 43.0, 1.0, 1.1, 0.9, 1.0, 44.0):
        a, b = one(norm), one(norm)
        first.judge(a, None)
        second.judge(b, None)
        assert a[0].tolist() == b[0].tolist() or math.isnan(norm)
        told = [dict(zip(READING, gate.telemetry().tolist(), strict=True)) for gate in (first, second)]
        assert told[0] | {"norm": None} == told[1] | {"norm": None}
    assert torch.equal(first.state, second.state)
    with pytest.raises(ValueError, match="numbers"):
        second.load_state_dict({"baseline": torch.zeros(3)})
    with pytest.raises(TypeError, match="GradientGate"):
        second.load_state_dict({"baseline": [0.0]})


def test_a_copy_of_a_gate_goes_its_own_way():
    gate = settled()
    copied = copy.deepcopy(gate)
    before = gate.state.clone()
    copied.judge(one(50.0), 1.0)
    assert torch.equal(gate.state, before)
    assert not torch.equal(copied.state, before)
    assert torch.equal(pickle.loads(pickle.dumps(copied)).state, copied.state)


def test_gradients_of_several_dtypes_are_clipped_as_torch_clips_them():
    gate = GradientGate()
    for seed in range(30):
        grads = [torch.randn(5), torch.randn(4, 4).bfloat16(), torch.randn(3).double(), None]
        stock = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads[:3]]
        for p, g in zip(stock, grads, strict=False):
            p.grad = g.clone()
        clip_grad_norm_(stock, 0.5)
        gate.judge(grads, 0.5)
        assert all(torch.equal(p.grad, g) for p, g in zip(stock, grads, strict=False)), seed


def test_an_unsound_update_and_all_after_it_are_skipped_until_it_is_made_up():
    gate = GradientGate()
    fine, nan = torch.tensor(0.5), torch.tensor(math.nan)

    def skips(norm, loss, **how):
        gate.judge(one(norm), 1.0, loss=loss, holds=True, **how)
        row = dict(zip(READING, gate.telemetry().tolist(), strict=True))
        assert row["is_applied"] == 1.0 - gate.skip.item()
        return gate.skip.item(), row["is_sound"]

    assert skips(1.0, fine) == (0.0, 1.0)
    assert skips(1.0, nan) == (1.0, 0.0)
    assert skips(1.0, fine) == (1.0, 1.0)
    gate.judge(one(1.0), 1.0)  # a look that holds nothing changes nothing
    assert gate.skip.item() == 0.0
    assert skips(1.0, fine) == (1.0, 1.0)
    gate.release()
    assert skips(1.0, fine) == (0.0, 1.0)
    assert skips(1.0, nan, by_loss=False) == (0.0, 1.0)
    assert skips(math.inf, fine, by_loss=False) == (1.0, 0.0)
