"""Runs cases on several real ranks (gloo, CPU) and writes down what each rank found: `sharded_ranks.py FOLDER RANKS CASE...`.

The ranks are forked from one process that has imported torch, so that a launch takes seconds.
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

CASES = {}
LONGEST_S = 30.0
"""After this a collective that a rank does not join is an error instead of a deadlock."""


def case(function):
    CASES[function.__name__] = function
    return function


class Collectives:
    """Counts the collectives of the training group inside the block."""

    def __enter__(self):
        self._before, self.count = self._now(), 0
        return self

    def __exit__(self, *_):
        self.count = self._now() - self._before

    @staticmethod
    def _now():
        return dist.group.WORLD._get_sequence_number_for_group()


class Uneven(nn.Module):
    """Layers of which ranks hold parts of different sizes, one rank nothing of the last, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 7), nn.Linear(7, 9), nn.Linear(9, 1)
        self.outer = nn.Parameter(torch.ones(3, 1))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.outer.sum()


def made(optimizer=torch.optim.AdamW, *, dtype=torch.float32, shard=True, **settings):
    torch.manual_seed(0)
    model = Uneven().to(dtype)
    if shard:
        for layer in (model.first, model.second, model.last):
            fully_shard(layer)
        fully_shard(model)
    return model, optimizer(model.parameters(), lr=1e-2, **settings)


def batch(step):
    drawn = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(4, 5, generator=drawn)


def backward(model, step, scale=1.0):
    loss = model(batch(step).to(next(model.parameters()).dtype)).pow(2).mean() * scale
    loss.backward()
    return loss.detach()


def train(model, optimizer, steps):
    for step in steps:
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


def local(tensor):
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def state_of(model, optimizer):
    """Copy everything that this rank holds of a model and an optimizer."""
    states = [optimizer.state.get(parameter, {}) for parameter in optimizer.param_groups[0]["params"]]
    moments = [state[key] for state in states for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    return [local(each.detach()).clone() for each in (*model.parameters(), *model.buffers(), *moments)]


def is_same(these, those):
    return len(these) == len(those) and all(torch.equal(a, b) for a, b in zip(these, those, strict=True))


def of_all_ranks(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def run(rank, folder, world, names):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=LONGEST_S),
    )
    found = {}
    for name in names:
        try:
            found[name] = CASES[name](Path(folder))
        except Exception:  # told to the test of that case
            found[name] = {"raised": traceback.format_exc()}
            break  # the ranks may no longer be at the same place
    (Path(folder) / f"found-{world}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


# -- states ----------------------------------------------------------------------------------------------


@case
def captured(folder):
    from self_healing.tensors.copies import Clones
    from self_healing.tensors.host_slot import HostCopies, HostSlot
    from self_healing.tensors.norms import state_norms
    from self_healing.tensors.state import capture

    found = {}
    slot = HostSlot()
    for way, copies in (("clones", Clones()), ("host", HostCopies(slot)), ("host-again", HostCopies(slot))):
        model, optimizer = made() if way != "host-again" else (model, optimizer)  # noqa: F821  # of the round before
        parameters = list(model.parameters())
        train(model, optimizer, range(3))
        before = state_of(model, optimizer)
        with Collectives() as taking:
            taken = capture([model, optimizer], copies=copies)
            copies.start()
            copies.wait()
        train(model, optimizer, range(3, 6))
        after = state_of(model, optimizer)
        with Collectives() as putting:
            taken.restore()
        put_back = is_same(state_of(model, optimizer), before)
        same_objects = all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
        train(model, optimizer, range(3, 6))
        found[way] = {
            "taking": taking.count,
            "putting": putting.count,
            "put back": put_back,
            "same objects": same_objects,
            "trained again": is_same(state_of(model, optimizer), after),
            "collected": getattr(copies, "collected", None),
            "bytes": copies.nbytes,
            "bytes here": sum(each.nbytes for each in before),
        }
        if way == "host":
            taken.restore()
            with Collectives() as auditing:
                norms = state_norms(model, optimizer)
            found["norms"] = copies.norms() == norms and len(norms) == 7 * 3
            found["auditing"] = auditing.count
            found["left out"] = copies.described().left_out
            found["whole"] = copies.verify()
            slot._blocks[0].bytes[8] ^= 1
            found["whole after a bit flipped"] = copies.verify()
            slot._blocks[0].bytes[8] ^= 1
    return found


@case
def captured_after_an_evaluation(folder):
    """The outermost module keeps its parameters gathered after a forward pass alone."""
    from self_healing.tensors.norms import state_norms
    from self_healing.tensors.state import capture

    model, optimizer = made()
    train(model, optimizer, range(2))
    taken_before = capture([model, optimizer])
    before, norms = state_of(model, optimizer), state_norms(model, optimizer)
    train(model, optimizer, range(2, 4))
    after = state_of(model, optimizer)
    taken_before.restore()
    with torch.no_grad():
        model(batch(9))
    is_gathered = not hasattr(model.outer, "_local_tensor")
    norms_meanwhile = state_norms(model, optimizer)
    model.seen.sub_(1)
    taken = capture([model, optimizer])
    train(model, optimizer, range(2, 4))
    with torch.no_grad():
        model(batch(9))  # gathers what is of the wrong step after the return
    taken.restore()
    put_back = is_same(state_of(model, optimizer), before)
    train(model, optimizer, range(2, 4))
    return {
        "gathered": is_gathered,
        "norms": norms == norms_meanwhile,
        "put back": put_back,
        "trained again": is_same(state_of(model, optimizer), after),
    }


@case
def adopted(folder):
    """Another process takes a state over from shared memory, each rank its own part."""
    from self_healing.tensors.adoption import fill_module, fill_optimizer, module_differences
    from self_healing.tensors.host_slot import HostCopies, HostSlot
    from self_healing.tensors.state import OptimizerState, capture

    model, optimizer = made()
    train(model, optimizer, range(2))
    backward(model, 2)
    copies = HostCopies(HostSlot())
    taken = capture(model, copies=copies)
    groups = OptimizerState(optimizer, copies=copies)
    copies.start()
    state = Left(copies)
    gradients = [local(each.grad).clone() for each in model.parameters()]
    before = state_of(model, optimizer)

    other, its_optimizer = made()
    train(other, its_optimizer, range(1))
    with Collectives() as taking:
        differences = module_differences(other, state.tensors, only_trainable=False, others=("optimizer", "gradient"))
        fill_module(other, state)
        names = {parameter: name for name, parameter in other.named_parameters()}
        values = groups.values()
        fill_optimizer(its_optimizer, names, state, {"groups": values["groups"], "others": {}})
    same = is_same(state_of(other, its_optimizer), before)
    same_gradients = is_same([local(each.grad) for each in other.parameters()], gradients)
    for each in ((model, optimizer), (other, its_optimizer)):
        each[1].step()
        each[1].zero_grad()
        train(*each, range(3, 5))
    whole, _ = made(shard=False)
    del taken
    return {
        "collectives": taking.count,
        "differences": differences,
        "same": same,
        "same gradients": same_gradients,
        "trained on": is_same(state_of(other, its_optimizer), state_of(model, optimizer)),
        "of a whole model": module_differences(
            whole, state.tensors, only_trainable=False, others=("optimizer", "gradient")
        )[:1],
    }


class Left:
    """A state as another process would read it."""

    class Mark:
        def __init__(self, values):
            self.dtype, self.shape = str(values.dtype).removeprefix("torch."), list(values.shape)
            self.stride, self.device, self.nbytes = None, "cpu", values.nbytes

    def __init__(self, copies):
        self._values = {name: place.values().contiguous() for place, name in copies.described().names.items()}
        self.tensors = {name: self.Mark(values) for name, values in self._values.items()}

    def read_into(self, name, target):
        target.cast("B")[:] = self._values[name].reshape(-1).view(torch.uint8).numpy().tobytes()


# -- gradients -------------------------------------------------------------------------------------------


def gradients_of(*models):
    return [parameter.grad for model in models for parameter in model.parameters()]


def copies_of(gradients):
    return [local(each).clone() for each in gradients]


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


if __name__ == "__main__":
    given_folder, given_world, *given_names = sys.argv[1:]
    mp.start_processes(run, (given_folder, int(given_world), given_names), nprocs=int(given_world), start_method="fork")
