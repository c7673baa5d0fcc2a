"""The core heals a real torch loop: the smallest honest run object, faults through the weights and the data."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest

from self_healing import HealingConfig
from self_healing.assembly import build_healer
from self_healing.core.capability import capabilities_of
from self_healing.core.ledger import Ledger, read_ledger
from self_healing.core.signal import Metrics, SnapshotDropped, SnapshotTaken

pytestmark = pytest.mark.torch
STEPS = 160
EVERY = 20


@dataclass
class Restored:
    key: str
    step: int


class Loop:
    """A plain loop over fixed data that reports each step and keeps two snapshots."""

    def __init__(self, folder, fault=None):
        import torch

        torch.manual_seed(0)
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        generator = torch.Generator().manual_seed(1)
        teacher = torch.randn(8, 4, generator=generator)
        self.batches = [torch.randn(32, 8, generator=generator) for _ in range(STEPS * 2)]
        self.labels = [(x @ teacher).argmax(1) for x in self.batches]
        self.fault = fault
        self.step = 0
        self.position = 0
        self.scale = 1.0
        self.stopped = ""
        self.snapshots = {}
        self.ledger = Ledger(folder, environ={})
        self.healer = build_healer(HealingConfig(), self.ledger, capabilities_of(self))

    # what this run can do
    def roll_back(self, *, before_step, depth, min_steps):
        usable = [s for s in self.snapshots.values() if before_step is None or s["step"] < before_step]
        state = usable[max(0, len(usable) - 1 - depth)]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step = state["step"]
        return Restored(state["key"], state["step"])

    def skip_batches(self, *, margin):
        return f"continuing with batch {self.position}"

    def scale_learning_rate(self, factor, *, floor):
        self.scale *= factor
        return 3e-3 * self.scale

    def stop_run(self, reason):
        self.stopped = reason
        return "stopped"

    def train(self):
        while self.step < STEPS and not self.stopped:
            if self.step % EVERY == 0:
                self._snapshot()
            self._one_step()
        assert self.ledger.flush(5.0)
        self.ledger.close()

    def _snapshot(self):
        key = f"s{self.step}"
        if not all(p.isfinite().all() for p in self.model.parameters()):
            return
        self.snapshots[key] = {
            "key": key, "step": self.step, "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }  # fmt: skip
        self.healer.observe(SnapshotTaken(step=self.step, key=key))
        while len(self.snapshots) > 3:
            gone = self.snapshots.pop(next(iter(self.snapshots)))
            self.healer.observe(SnapshotDropped(step=self.step, key=gone["key"]))

    def _one_step(self):
        x, y = self.batches[self.position], self.labels[self.position]
        self.position += 1
        if self.fault is not None:
            self.fault(self)
        for group in self.optimizer.param_groups:
            group["lr"] = 3e-3 * self.scale
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        norm = self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if math.isfinite(norm):
            self.optimizer.step()
        self.step += 1
        broken = sum(not p.isfinite().all() for p in self.model.parameters())
        values = {"loss": loss.item(), "grad_norm": norm.item(), "weights_nonfinite": float(broken)}
        plan = self.healer.observe(Metrics(step=self.step, time_s=float(self.position), values=values))
        while plan is not None:
            outcome = self.healer.act(plan, self, lambda: float(self.position))
            plan = None if outcome is None else self.healer.next_plan(outcome)

    def final_loss(self):
        with self.torch.no_grad():
            x, y = self.torch.cat(self.batches[-50:]), self.torch.cat(self.labels[-50:])
            return self.torch.nn.functional.cross_entropy(self.model(x), y).item()


def once(position, do):
    def fault(loop):
        if loop.position == position:
            do(loop)

    return fault


def nan_weight(loop):
    with loop.torch.no_grad():
        loop.model[0].weight[0, 0] = math.nan


def flipped_weights(loop):
    with loop.torch.no_grad():
        loop.model[2].weight.mul_(-30)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    loop = Loop(tmp_path_factory.mktemp("clean"))
    loop.train()
    return loop


def test_a_clean_run_is_left_alone(clean):
    reading = read_ledger(clean.ledger.path)
    assert [e for e in reading.entries if e.kind in ("incident", "plan")] == []
    assert clean.final_loss() < 0.7


@pytest.mark.parametrize("fault", [nan_weight, flipped_weights])
def test_harmed_weights_are_left_behind_by_a_rollback(fault, clean, tmp_path):
    loop = Loop(tmp_path, fault=once(70, fault))
    loop.train()
    entries = list(read_ledger(loop.ledger.path).entries)
    restored = [e.body["restored"] for e in entries if e.kind == "outcome" and e.body["restored"]]
    assert restored, [(e.step, e.name, e.body.get("because")) for e in entries if e.kind == "incident"]
    assert loop.step == STEPS
    assert loop.final_loss() < clean.final_loss() * 1.1


def test_a_run_that_cannot_be_helped_is_stopped_within_the_budget(tmp_path):
    def always(loop):
        if loop.position > 70:
            nan_weight(loop)

    loop = Loop(tmp_path, fault=always)
    loop.train()
    assert loop.stopped
    assert loop.position < 150, "not a night burnt"
