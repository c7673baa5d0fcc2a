"""The same on a GPU, where a wait is a wait: every synchronisation is an error here."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from self_healing.tensors import fused
from self_healing.tensors.adagc import AdaGC
from self_healing.tensors.fused import READING
from self_healing.tensors.gate import GradientGate
from self_healing.tensors.norms import Norms
from self_healing.tensors.skip import SkippingOptimizer
from self_healing.tensors.zclip import ZClip

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def waits_are_errors():
    class Strict:
        def __enter__(self):
            torch.cuda.set_sync_debug_mode("error")

        def __exit__(self, *_):
            torch.cuda.set_sync_debug_mode("default")

    return Strict()


def parameters(seed, dtypes):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    made = []
    for i, shape in enumerate([(70, 50), (5,), (3, 3, 2), (), (100_003,), (512, 512)]):
        p = torch.nn.Parameter(torch.zeros(shape, device="cuda", dtype=dtypes[i % len(dtypes)]))
        p.grad = torch.randn(shape, device="cuda", generator=generator).to(p.dtype)
        made.append(p)
    return made


@pytest.mark.parametrize(
    "dtypes", [[torch.float32], [torch.bfloat16], [torch.float16], [torch.bfloat16, torch.float32]], ids=str
)
def test_a_healthy_run_is_clipped_as_torch_clips_it_bit_for_bit(dtypes):
    gate = GradientGate()
    for seed in range(200):
        stock, ours = parameters(seed, dtypes), parameters(seed, dtypes)
        expected = clip_grad_norm_(stock, 1.0)
        assert torch.equal(Norms([p.grad for p in ours]).as_torch, expected)
        gate.judge([p.grad for p in ours], 1.0)
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(stock, ours, strict=True))
        assert not gate.is_outlier


@pytest.mark.parametrize("settings", [{}, {"clip_outliers": False}, {"always": "z"}, {"per_tensor": "a"}], ids=str)
def test_nothing_waits_for_the_device(settings, waits_are_errors):
    gate = GradientGate(**{k: {"z": ZClip, "a": AdaGC}[v]() if isinstance(v, str) else v for k, v in settings.items()})
    made = parameters(0, [torch.float32])
    optimizer = torch.optim.AdamW(made, fused=True)
    skipping = SkippingOptimizer(optimizer)
    grads = [p.grad for p in made]
    for _ in range(20):  # the first call moves the constants, the first step makes the moments
        gate.judge(grads, 1.0)
    skipping.step_unless(gate.found_inf, optimizer.step)
    outlier, bad = [g * 1e4 for g in grads], [g * math.nan for g in grads]
    flags = []
    with waits_are_errors:
        for given in (grads, outlier, bad, grads):
            for p, g in zip(made, given, strict=True):
                p.grad = g
            gate.judge(given, 1.0)
            flags.append(gate.telemetry().clone())
            skipping.step_unless(gate.found_inf, optimizer.step)
    flags = torch.stack(flags).tolist()
    assert [row[READING.index("found_inf")] for row in flags] == [0.0, 0.0, 1.0, 0.0]
    assert [row[READING.index("is_outlier")] for row in flags] == [0.0, 1.0, 0.0, 0.0]
    assert optimizer.state[made[0]]["step"].item() == 4.0
    assert all(p.isfinite().all() for p in made)


@pytest.mark.parametrize("settings", [{}, {"clip_outliers": False}], ids=str)
def test_the_fused_baseline_is_the_ordinary_one(settings):
    kernel, ordinary = GradientGate(**settings), GradientGate(**settings)
    ordinary.may_fuse = False
    generator = torch.Generator().manual_seed(3)
    logs = (0.3 * torch.randn(500, generator=generator) - 0.01 * torch.arange(500)).tolist()
    for i in [*range(50, 500, 41), *range(200, 206), *range(300, 302)]:
        logs[i] += 5.0
    norms = [math.exp(x) for x in logs]
    norms[0] = norms[30] = norms[201] = math.nan
    norms[60], norms[61] = math.inf, 0.0
    rows = []
    pinned = torch.zeros(len(READING), pin_memory=True)
    for i, norm in enumerate(norms):
        a, b = (torch.tensor([0.6 * norm, 0.8 * norm], device="cuda") for _ in range(2))
        loss = torch.tensor(math.nan if i % 70 == 69 else 1.0, device="cuda")
        kernel.judge([a], 1.0, loss=loss, holds=True, row=pinned)
        ordinary.judge([b], 1.0, loss=loss, holds=True)
        if i % 7 == 0:
            kernel.release()
            ordinary.release()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.0, equal_nan=True)
        assert kernel.telemetry() is pinned
        torch.cuda.synchronize()
        rows.append((pinned.clone(), ordinary.telemetry().cpu()))
        assert kernel.skip.item() == ordinary.skip.item()
    assert kernel._fused is not None
    assert ordinary._fused is None
    a, b = (torch.stack(side) for side in zip(*rows, strict=True))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
    decisions = [READING.index(name) for name in ("is_sound", "is_applied", "found_inf", "is_outlier")]
    assert torch.equal(a[:, decisions], b[:, decisions])
    assert a[:, READING.index("is_outlier")].sum().item() >= 10.0
    assert 20 < a[:, READING.index("is_applied")].sum().item() < 480
    torch.testing.assert_close(kernel.state.cpu().double(), ordinary.state, rtol=1e-3, atol=1e-3)
    again = GradientGate(**settings)
    again.load_state_dict(kernel.state_dict())
    for norm in norms[:40]:
        a, b = (torch.tensor([0.6 * norm, 0.8 * norm], device="cuda") for _ in range(2))
        kernel.judge([a], 1.0)
        again.judge([b], 1.0)
    assert torch.equal(kernel.state, again.state)


@pytest.mark.parametrize("settings", [{}, {"always": ZClip}, {"per_tensor": AdaGC}], ids=str)
def test_the_kernels_learn_nothing_from_what_is_held_back(settings):
    kernel, ordinary = (GradientGate(**{name: made() for name, made in settings.items()}) for _ in range(2))
    for part in (ordinary, ordinary.always, ordinary.per_tensor):
        if part is not None:
            part.may_fuse = False
    for seed in range(60):
        for gate in (kernel, ordinary):
            made = parameters(seed, [torch.float32])
            loss = torch.tensor(math.nan if seed % 10 == 5 else 1.0, device="cuda")
            before = gate.state.cpu().clone()
            gate.judge([p.grad for p in made], 1.0, loss=loss, holds=True)
            if seed % 10 in {5, 6, 7}:
                assert torch.equal(gate.state.cpu(), before)
            if seed % 10 == 7:
                gate.release()
    assert kernel._fused is not None
    assert ordinary._fused is None
    a, b = kernel.state_dict(), ordinary.state_dict()
    torch.testing.assert_close(a["baseline"].cpu().double(), b["baseline"].cpu(), rtol=1e-3, atol=1e-3)
    for part in settings:
        for name in ("mean", "var", "count", "total_clips", "gammas", "steps"):
            if name in a[part]:
                torch.testing.assert_close(a[part][name], b[part][name], rtol=1e-5, atol=0.0)
    counts = {"always": ("count", 25.0), "per_tensor": ("steps", 42.0)}
    for part in settings:
        name, expected = counts[part]
        assert a[part][name].item() == expected


def test_without_a_compiler_nothing_is_fused_and_everything_works(monkeypatch, caplog):
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    fused._compiled.cache_clear()
    gate = GradientGate()
    gate.judge([torch.ones(3, device="cuda")], 1.0)
    assert gate.coefficient.item() < 1.0
    assert "waits" in caplog.text


def test_a_copy_of_a_gate_works():
    gate = GradientGate()
    gate.judge([torch.ones(3, device="cuda")], 1.0)
    copied = copy.deepcopy(gate)
    copied.judge([torch.ones(3, device="cuda")], 1.0)
    assert copied.state[3].item() == 2.0
    assert gate.state[3].item() == 1.0


def test_public_classes_do_not_wait(waits_are_errors):
    made = parameters(0, [torch.float32])
    for clipper in (ZClip(), AdaGC()):
        clipper.step(made)
        with waits_are_errors:
            clipper.step(made)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "percentile"}, {"clip_option": "mean"}, {"skip_update_on_spike": True}, {"max_grad_norm": None}],
    ids=str,
)
def test_the_fused_zclip_is_the_ordinary_one(settings):
    kernel, ordinary = ZClip(**settings), ZClip(**settings)
    ordinary.may_fuse = False
    generator = torch.Generator().manual_seed(3)
    norms = (0.3 * torch.randn(300, generator=generator)).exp().tolist()
    norms[40] = norms[90] = norms[91] = 30.0
    norms[0], norms[50], norms[51], norms[60] = math.nan, math.inf, math.nan, 0.0
    for norm in norms:
        given = torch.tensor(norm, device="cuda")
        a, b = kernel.coefficient(given), ordinary.coefficient(given)
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0.0)
        torch.testing.assert_close(kernel.z_score, ordinary.z_score, rtol=1e-9, atol=1e-12)
    assert kernel._fused is not None
    assert kernel.total_clips.item() == ordinary.total_clips.item() >= 2.0
    again = copy.deepcopy(kernel)
    other = ZClip(**settings)
    other.load_state_dict(kernel.state_dict())
    for clipper in (again, other, ordinary):
        clipper.coefficient(torch.tensor(1.1, device="cuda"))
        torch.testing.assert_close(clipper.mean, again.mean, rtol=1e-9, atol=0.0)
    assert kernel.mean.item() != again.mean.item()


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_the_fused_adagc_is_the_ordinary_one(max_norm):
    kernel, ordinary = AdaGC(warmup_steps=5), AdaGC(warmup_steps=5)
    ordinary.may_fuse = False
    for seed in range(30):
        pair = [parameters(seed, [torch.float32]), parameters(seed, [torch.float32])]
        factor = {11: 50.0, 12: math.nan, 13: math.inf, 14: 0.0}.get(seed, 1.0)
        for made in pair:
            made[4].grad = torch.cat((torch.zeros(1, device="cuda"), made[4].grad))[1:]  # not where four begin
            for p in made[:3]:
                p.grad *= factor
        ratios = []
        for clipper, made in zip((kernel, ordinary), pair, strict=True):
            grads = [p.grad for p in made]
            ratios.append(clipper.clip_(grads, Norms(grads), max_norm))
        torch.testing.assert_close(*ratios, rtol=1e-5, atol=0.0)
        torch.testing.assert_close(kernel.gammas, ordinary.gammas, rtol=1e-5, atol=0.0)
        for a, b in zip(*pair, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=0.0, equal_nan=True)
    assert kernel._fused is not None
    assert kernel.steps.item() == ordinary.steps.item() == 28.0
