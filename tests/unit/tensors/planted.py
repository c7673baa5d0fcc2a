"""Models, batches and steps to plant faults in, and a probe that is checked to leave no trace."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import torch
from torch import nn

from self_healing.tensors.probe import Attribution, probe
from self_healing.tensors.random_state import RandomState

VOCABULARY = 64
HOOKS = [name for name in vars(nn.Module()) if "_hooks" in name]


def bits(tensor):
    return None if tensor is None else (tensor.dtype, tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def picture(model):
    """All that a probe must leave as it was; gradients also by identity."""
    return {
        "parameters": {name: bits(p) for name, p in model.named_parameters()},
        "gradients": {name: (id(p.grad), bits(p.grad)) for name, p in model.named_parameters()},
        "buffers": {name: (id(b), bits(b)) for name, b in model.named_buffers()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "hooks": {name: [list(getattr(m, hook)) for hook in HOOKS] for name, m in model.named_modules()},
        "random": RandomState.capture().numbers(),
        "autograd": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), torch.is_grad_enabled()),
    }


def examine(model, step, batch, state=None, **options) -> Attribution:
    """Probe with gradients half there, and see that nothing has changed."""
    state = state or RandomState.capture()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, math.nan if i % 4 == 0 else 0.25) if i % 2 == 0 else None
    torch.rand(3)
    before = picture(model)
    found = probe(model, step, batch, state, **options)
    assert picture(model) == before
    json.dumps(found.to_json(), allow_nan=False)
    assert found.sentence().endswith(".")
    return found


@contextmanager
def swapped(module, **tensors):
    """Put other values into a shared model for a while."""
    saved = {name: getattr(module, name).detach().clone() for name in tensors}
    try:
        with torch.no_grad():
            for name, values in tensors.items():
                getattr(module, name).copy_(values)
        yield
    finally:
        with torch.no_grad():
            for name, values in saved.items():
                getattr(module, name).copy_(values)


def llama_step(model):
    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        return loss.detach()

    return step


def sentences(rows=4, length=12):
    ids = torch.randint(0, VOCABULARY, (rows, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone(), "num_items": None}


def mlp(width=8):
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))


def mlp_step(model, key="x"):
    def step(batch):
        loss = model(batch[key]).square().mean()
        loss.backward()
        return loss

    return step


class Boom(nn.Module):
    """Does something to its input under a condition of the row."""

    def __init__(self, effect):
        super().__init__()
        self.effect = effect

    def forward(self, x):
        return self.effect(x)


def tiny_llama():
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


@contextmanager
def seeded():
    """One thread and one seed, so that figures do not depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
