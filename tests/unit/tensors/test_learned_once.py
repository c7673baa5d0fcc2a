"""A step that is judged twice, held back and made up, teaches once."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing.tensors.adagc import AdaGC
from self_healing.tensors.gate import GradientGate
from self_healing.tensors.zclip import ZClip

pytestmark = pytest.mark.torch


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    size = math.exp(0.3 * math.sin(seed))
    return [torch.randn(shape, generator=generator) * size for shape in [(6, 5), (5,), (3, 3, 2), (), (400,)]]


@pytest.mark.parametrize("spoils", ["gradients", "loss", "loss-twice"])
@pytest.mark.parametrize("settings", [{}, {"always": ZClip}, {"per_tensor": AdaGC}], ids=str)
def test_what_is_skipped_or_held_back_behind_it_is_learned_once_when_it_is_made_up(settings, spoils):
    """A loss that is not finite may come with gradients that are: it is skipped all the same, and comes again."""
    plain, held = (GradientGate(**{name: made() for name, made in settings.items()}) for _ in range(2))

    def judge(gate, seed, *, spoiled=False, holds=True):
        grads = gradients(seed)
        in_gradients = spoiled and spoils == "gradients"
        loss = torch.tensor(math.nan if spoiled and not in_gradients else 1.0)
        gate.judge([grad * math.nan for grad in grads] if in_gradients else grads, 1.0, loss=loss, holds=holds)

    for seed in range(200):
        judge(plain, seed)
        judge(held, seed, spoiled=seed % 20 == 5)
        if seed % 20 == 7:  # read late, as on a device: two sound ones wait behind the spoiled one
            held.release()
            if spoils == "loss-twice":  # it is unsound when it is made up too, before other data take its place
                judge(held, seed - 2, spoiled=True, holds=False)
            for again in (seed - 2, seed - 1, seed):
                judge(held, again, holds=False)
    for a, b in zip(learned(plain), learned(held), strict=True):
        assert torch.equal(a, b)


def learned(gate):
    """Return every number that a gate, or what it clips with, has learned."""
    found = [gate.state_dict()["baseline"]]
    for part in ("always", "per_tensor"):
        found += [value for value in gate.state_dict().get(part, {}).values() if isinstance(value, torch.Tensor)]
    return found
