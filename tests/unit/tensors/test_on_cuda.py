"""The same on a GPU, where a wait is a wait: every synchronisation is an error here."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from self_healing.tensors.adagc import AdaGC
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
            flags.append(gate.telemetry())
            skipping.step_unless(gate.found_inf, optimizer.step)
    flags = torch.stack(flags).tolist()
    assert [row[3] for row in flags] == [0.0, 0.0, 1.0, 0.0]
    assert [row[4] for row in flags] == [0.0, 1.0, 0.0, 0.0]
    assert optimizer.state[made[0]]["step"].item() == 4.0
    assert all(p.isfinite().all() for p in made)


@pytest.mark.parametrize("settings", [{}, {"clip_outliers": False}], ids=str)
def test_the_fused_baseline_is_the_ordinary_one(settings):
    fused, ordinary = GradientGate(**settings), GradientGate(**settings)
    ordinary.baseline.fused.enabled = False
    generator = torch.Generator().manual_seed(3)
    logs = (0.3 * torch.randn(500, generator=generator) - 0.01 * torch.arange(500)).tolist()
    for i in [*range(50, 500, 41), *range(200, 206), *range(300, 302)]:
        logs[i] += 5.0
    norms = [math.exp(x) for x in logs]
    norms[0] = norms[30] = norms[201] = math.nan
    norms[60], norms[61] = math.inf, 0.0
    rows = []
    for norm in norms:
        a, b = (torch.tensor([0.6 * norm, 0.8 * norm], device="cuda") for _ in range(2))
        fused.judge([a], 1.0)
        ordinary.judge([b], 1.0)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.0, equal_nan=True)
        rows.append((fused.telemetry(), ordinary.telemetry()))
    assert fused.baseline.fused.enabled
    assert fused.baseline.fused.kernels(torch.device("cuda"), clip=not settings) is not None
    a, b = (torch.stack(side) for side in zip(*rows, strict=True))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert torch.equal(a[:, 3:5], b[:, 3:5])
    assert a[:, 4].sum().item() >= 10.0
    torch.testing.assert_close(fused.baseline.state, ordinary.baseline.state, rtol=1e-3, atol=1e-3)
    again = GradientGate(**settings)
    again.load_state_dict(fused.state_dict())
    for norm in norms[:40]:
        a, b = (torch.tensor([0.6 * norm, 0.8 * norm], device="cuda") for _ in range(2))
        fused.judge([a], 1.0)
        again.judge([b], 1.0)
    assert torch.equal(fused.baseline.state, again.baseline.state)


def test_without_a_compiler_nothing_is_fused_and_everything_works(monkeypatch, caplog):
    import torch.cuda.jiterator

    monkeypatch.delattr(torch.cuda.jiterator, "_create_multi_output_jit_fn")
    gate = GradientGate()
    gate.judge([torch.ones(3, device="cuda")], 1.0)
    assert gate.coefficient.item() < 1.0
    assert not gate.baseline.fused.enabled
    assert "sixty" in caplog.text


def test_a_copy_of_a_gate_works():
    gate = GradientGate()
    gate.judge([torch.ones(3, device="cuda")], 1.0)
    copied = copy.deepcopy(gate)
    copied.judge([torch.ones(3, device="cuda")], 1.0)
    assert copied.baseline.state[3].item() == 2.0
    assert gate.baseline.state[3].item() == 1.0


def test_public_classes_do_not_wait(waits_are_errors):
    made = parameters(0, [torch.float32])
    for clipper in (ZClip(), AdaGC()):
        clipper.step(made)
        with waits_are_errors:
            clipper.step(made)
