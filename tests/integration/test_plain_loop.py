"""A loop of one's own under guard: where nothing goes wrong it is the bare loop to the bit, whatever the loop is like."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import subprocess
import sys
import textwrap
import typing

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from self_healing import HealingConfig, guard
from self_healing.core.errors import RunDirectoryLocked

from .plain_loops import (
    BATCH, FORMS, WIDTH, Net, Rows, a_bug, actions, assert_same, bare, cross_entropy, data, differences, entries,
    guarded, make, nan_loss, notes, optimizer_of, postmortem, settings,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- a clean run leaves no trace -----------------------------------------------------------------------

CLEAN = [
    pytest.param({}, id="plain"),
    pytest.param({"accumulate": 4, "rows": 42}, id="accumulated over the end of an epoch"),
    pytest.param({"optimizer": "fused", "accumulate": 4, "rows": 42}, id="fused and accumulated"),
    pytest.param({"optimizer": "fused", "workers": 2}, id="fused with workers"),
    pytest.param({"optimizer": "sgd", "accumulate": 3}, id="momentum"),
    pytest.param({"optimizer": "sgd", "clip": 0.3}, id="clipped"),
    pytest.param({"scaled": True}, id="scaled"),
    pytest.param({"scaled": True, "clip": 0.3, "accumulate": 2}, id="scaled, clipped and accumulated"),
    pytest.param({"optimizer": "fused", "scaled": True}, id="fused and scaled"),
    pytest.param({"optimizer": "fused", "scaled": True, "clip": 0.3}, id="fused, scaled and clipped"),
    pytest.param({"scheduler": None}, id="no scheduler"),
    pytest.param({"scheduler": "step", "per_epoch": True, "evaluates": True}, id="a scheduler per epoch"),
]
"""What covers each of optimizer, accumulation, workers, scaler and clipping, and the pairs that share code."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", CLEAN)
def test_a_guarded_loop_is_the_bare_loop_to_the_bit(how, form, tmp_path):
    plain, loop = bare(make(**how)), make(**how)
    run = guarded(loop, tmp_path, form, max_grad_norm=how.get("clip") if form < 3 else None)
    assert_same(loop, plain)
    assert loop.losses == plain.losses
    assert loop.bodies == plain.bodies
    assert run.step_number == plain.bodies // loop.accumulate
    assert actions(tmp_path) == []
    assert postmortem(tmp_path).exit_reason == "completed"


@pytest.mark.parametrize("how", [{}, {"optimizer": "fused"}], ids=["skipped unscaled", "skipped by the optimizer"])
def test_the_norm_of_a_scaled_loop_is_told_in_its_true_size(how, tmp_path):
    """A fused optimizer divides by the scale itself: the gradients that it is given are not the true ones."""
    norms = {}
    for scaled in (False, True):
        loop = make(scaled=scaled, dropout=0.0, **how)
        found = norms[scaled] = []
        guarded(loop, tmp_path / str(scaled), 3, each=lambda run, s, f=found: f.append(float(run._session.guard.gate.norm)))
    assert norms[True] == pytest.approx(norms[False], rel=1e-3)
