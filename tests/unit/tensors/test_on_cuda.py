"""The same on a GPU, where a wait is a wait: every synchronisation is an error here."""

from __future__ import annotations

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


def test_public_classes_do_not_wait(waits_are_errors):
    made = parameters(0, [torch.float32])
    for clipper in (ZClip(), AdaGC()):
        clipper.step(made)
        with waits_are_errors:
            clipper.step(made)
