"""What the cases on several real ranks (gloo, CPU) have in common: a model, its training, and what is found."""

from __future__ import annotations

import json
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

CASES = {}
LONGEST_S = 30.0
"""After this a collective that a rank does not join is an error instead of a deadlock."""


def case(function):
    CASES[function.__name__] = function
    return function


class Collectives:
    """Counts the collectives of the training group inside the block, or those of other groups."""

    def __init__(self, *groups):
        self._groups = groups or (dist.group.WORLD,)

    def __enter__(self):
        self._before, self.count = self._now(), 0
        return self

    def __exit__(self, *_):
        self.count = self._now() - self._before

    def _now(self):
        return sum(group._get_sequence_number_for_group() for group in self._groups)


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


def made(optimizer=torch.optim.AdamW, *, dtype=torch.float32, shard=True, sharding=None, **settings):
    torch.manual_seed(0)
    model = Uneven().to(dtype)
    if shard:
        for layer in (model.first, model.second, model.last, model):
            fully_shard(layer, **(sharding or {}))
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


def gradients_of(*models):
    return [parameter.grad for model in models for parameter in model.parameters()]


def copies_of(gradients):
    return [local(each).clone() for each in gradients]
