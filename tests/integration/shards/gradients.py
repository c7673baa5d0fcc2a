"""Gradients of models that are spread over ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from harness import (
    Collectives,
    backward,
    case,
    copies_of,
    gradients_of,
    is_same,
    local,
    made,
    of_all_ranks,
    state_of,
)
from torch import nn


@case
def clipped(folder):
    """Measured and clipped beside torch, from the same gradients."""
    from self_healing.tensors.gate import GradientGate

    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        stock, guarded = made(dtype=dtype)[0], made(dtype=dtype)[0]
        for model in (stock, guarded):
            backward(model, 0, scale=500.0)
        with Collectives() as of_stock:
            norm = nn.utils.clip_grad_norm_(stock.parameters(), 1.0).full_tensor()
        gate = GradientGate(clip_outliers=False)
        with Collectives() as ours:
            measured = gate.judge(gradients_of(guarded), 1.0)
        found[str(dtype)] = {
            "collectives": [of_stock.count, ours.count],
            "norm": [float(norm), float(measured)],
            "same gradients": is_same(copies_of(gradients_of(stock)), copies_of(gradients_of(guarded))),
            "finite": not bool(gate.found_inf),
            "same on all ranks": len(set(of_all_ranks(float(measured)))) == 1,
        }
    return found


@case
def not_finite_on_one_rank(folder):
    """A single NaN in the shard of the last rank, or an infinity; sharded parameters alone and beside plain ones."""
    from self_healing.tensors.gate import GradientGate

    found = {}
    for bad in (float("nan"), float("inf")):
        for with_plain in (False, True):
            model, plain = made()[0], nn.Linear(2, 2)
            backward(model, 0)
            plain(torch.ones(1, 2)).sum().backward()
            models = (model, plain) if with_plain else (model,)
            if dist.get_rank() == dist.get_world_size() - 1:
                local(model.second.weight.grad)[0, 0] = bad
            before = copies_of(gradients_of(*models))
            gate = GradientGate()
            with Collectives() as counted:
                gate.judge(gradients_of(*models), 1.0, holds=True)
            after = copies_of(gradients_of(*models))
            kept = all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after, strict=True))
            found[f"{bad}, {with_plain}"] = [float(gate.found_inf), float(gate.skip), counted.count, kept]
    return found


OPTIMIZERS = {
    "for-loop": (torch.optim.AdamW, {"foreach": False}),
    "foreach": (torch.optim.AdamW, {"foreach": True}),
    "fused": (torch.optim.AdamW, {"fused": True}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
}


@case
def skipped(folder):
    """Guarded steps beside stock ones: what they cost in collectives, and that a skipped one leaves everything as it is."""
    from self_healing.tensors.gate import GradientGate
    from self_healing.tensors.skip import SkippingOptimizer

    def step(model, optimizer, number, gate, harm=False):
        loss = backward(model, number)
        if harm and dist.get_rank() == 0:
            local(model.first.bias.grad)[0] = float("nan")
        gate.judge(gradients_of(model), 1.0, loss=loss, holds=True, by_loss=False)
        SkippingOptimizer(optimizer).step_unless(gate.skip, optimizer.step)
        optimizer.zero_grad()

    def stock_step(model, optimizer, number):
        backward(model, number)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    found = {}
    for name, (kind, settings) in OPTIMIZERS.items():
        first = made(kind, **settings)
        gate = GradientGate()
        step(*first, 0, gate, harm=True)  # the very first one, which would begin the moments
        gate.release()
        stock, guarded = made(kind, **settings), made(kind, **settings)
        same = is_same([local(p) for p in first[0].parameters()], [local(p) for p in guarded[0].parameters()])
        gate = GradientGate()
        for number in range(2):
            stock_step(*stock, number)
            step(*guarded, number, gate)
        with Collectives() as of_stock:
            stock_step(*stock, 2)
        with Collectives() as ours:
            step(*guarded, 2, gate)
        before = state_of(*guarded)
        step(*guarded, 3, gate, harm=True)
        guarded[0].seen.sub_(1)
        untouched = is_same(state_of(*guarded), before)
        gate.release()
        stock_step(*stock, 3)
        step(*guarded, 3, gate)
        found[name] = {
            "way": SkippingOptimizer(guarded[1]).way,
            "collectives": [of_stock.count, ours.count],
            "first untouched": same,
            "untouched": untouched,
            "as stock": is_same(state_of(*guarded), state_of(*stock)),
        }
    return found
