"""Corrupted states and dead runs in a real torch loop: found by audits and first losses, healed by going back."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass

import pytest

from self_healing import HealingConfig
from self_healing.assembly import build_healer
from self_healing.core.capability import capabilities_of
from self_healing.core.failure import Effect
from self_healing.core.ledger import MemoryLedger
from self_healing.core.signal import Facts, Metrics, SnapshotTaken
from self_healing.drills.tiny_training import VOCABULARY, records, tiny_model
from self_healing.snapshots.audit import Between, TensorNorm, unexplained

pytestmark = pytest.mark.torch
STEPS, EVERY, RATE = 60, 10, 5e-3
MOMENTS = {"exp_avg": "first-moment", "exp_avg_sq": "second-moment"}


@dataclass
class Restored:
    key: str
    step: int


class Loop:
    """A plain loop that keeps the state before its first step and one every ten, each audited when it is taken."""

    def __init__(self, *, rate=RATE, fault=None, steps=STEPS):
        import torch

        self.torch = torch
        self.model = tiny_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.rows = torch.tensor([row["input_ids"] for row in records(8 * 3 * STEPS, seed=2)]).view(-1, 8, 16)
        self.rate, self.scale, self.steps, self.fault = rate, 1.0, steps, fault
        self.step = self.position = self.trained = 0
        self.stopped = ""
        self.states = {}
        self.rates, self.gradients, self.losses, self.plans = [], [], [], []
        self.audited = None
        self.ledger = MemoryLedger()
        self.healer = build_healer(HealingConfig(), self.ledger, capabilities_of(self))
        self.healer.observe(Facts(step=0, facts={"vocab_size": VOCABULARY}))

    # what this run can do
    def roll_back(self, *, before_step, depth, min_steps):
        usable = [s for s in self.states.values() if before_step is None or s["step"] < before_step]
        state = usable[max(0, len(usable) - 1 - depth)] if depth < 2 else usable[0]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step, self.position, self.audited = state["step"], state["position"], state["norms"]
        self.rates, self.gradients = [], []
        for key in [key for key, other in self.states.items() if other["step"] > state["step"]]:
            del self.states[key]
        return Restored(state["key"], state["step"])

    def skip_batches(self, *, margin):
        self.position += EVERY + margin
        return f"continuing with batch {self.position}"

    def scale_learning_rate(self, factor, *, floor):
        assert floor == 0.0, "the smallest rate of the settings is not for a run that was dead from its start"
        self.scale *= factor
        return self.rate * self.scale

    def stop_run(self, reason):
        self.stopped = reason
        return "stopped"

    def train(self):
        self._take()
        while self.step < self.steps and not self.stopped:
            self._one_step()
        return self

    def _take(self):
        """Set the state aside unless its audit has findings, and tell the healer of both."""
        norms, findings, since = self._norms(), [], 0
        if self.audited is not None:
            since = self.step - len(self.rates)
            between = Between(
                optimizer="AdamW", steps=len(self.rates), rate_sum=math.fsum(self.rates),
                largest_gradient=max(self.gradients), weight_decay=0.01,
            )  # fmt: skip
            findings = unexplained(self.audited, norms, between)
            self._tell({"state_unexplained": float(len(findings)), "state_audited_from": float(since)})
        if findings or self.stopped:
            return
        key = f"s{self.step}"
        self.audited, self.rates, self.gradients = norms, [], []
        self.states[key] = {
            "key": key, "step": self.step, "position": self.position, "norms": norms,
            "model": copy.deepcopy(self.model.state_dict()), "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }  # fmt: skip
        self.healer.observe(SnapshotTaken(step=self.step, key=key))

    def _norms(self):
        named = [(name, "", "weight", p.detach()) for name, p in self.model.named_parameters()]
        for name, p in self.model.named_parameters():
            for key, kind in MOMENTS.items():
                if key in self.optimizer.state[p]:
                    named.append((f"{name}/{key}", name, kind, self.optimizer.state[p][key]))
        return [
            TensorNorm(name=name, of=of, kind=kind, size=x.numel(), norm=x.norm().item()) for name, of, kind, x in named
        ]

    def _one_step(self):
        ids = self.rows[self.position]
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * self.scale
        self.optimizer.zero_grad()
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        if math.isfinite(norm):
            self.optimizer.step()
        self.step, self.position, self.trained = self.step + 1, self.position + 1, self.trained + 1
        self.rates.append(self.rate * self.scale)
        self.gradients.append(min(norm, 1.0))
        self.losses.append(loss.item())
        if self.fault is not None:
            self.fault(self)
        broken = float(sum(not p.isfinite().all() for p in self.model.parameters()))
        before = self.step
        self._tell({"loss": loss.item(), "grad_norm": norm, "learning_rate": self.rate, "weights_nonfinite": broken})
        if self.step == before and self.step % EVERY == 0:
            self._take()

    def _tell(self, values):
        signal = Metrics(step=self.step, time_s=float(self.trained), values=values)
        plan = self.healer.observe(signal)
        while plan is not None:
            if plan.effect > Effect.NOTHING:
                self.plans.append(plan)
            outcome = self.healer.act(plan, self, lambda: 0.0)
            plan = None if outcome is None else self.healer.next_plan(outcome)

    def rungs(self):
        return ["+".join(action.name() for action in plan.actions) for plan in self.plans]

    def is_like(self, other):
        pairs = zip(self.model.state_dict().values(), other.model.state_dict().values(), strict=True)
        return all(self.torch.equal(ours, theirs) for ours, theirs in pairs)


def once(step, do):
    def fault(loop):
        if loop.trained == step:
            with loop.torch.no_grad():
                do(loop)

    return fault


def weights_times_minus_30(loop):
    loop.model.model.layers[1].self_attn.k_proj.weight.mul_(-30)


def exponent_bit(loop):
    flat = loop.model.model.layers[0].mlp.up_proj.weight.view(-1).view(loop.torch.int32)
    flat[17] = flat[17].bitwise_xor(1 << 30)


def second_moment_zeroed(loop):
    loop.optimizer.state[loop.model.lm_head.weight]["exp_avg_sq"].zero_()


def nan_weight(loop):
    loop.model.model.layers[0].mlp.up_proj.weight[0, 0] = math.nan


@pytest.fixture(scope="module")
def clean():
    return Loop().train()


def test_a_clean_run_is_left_alone(clean):
    assert clean.plans == []
    assert clean.losses[-1] < 0.7 * clean.losses[0]


@pytest.mark.parametrize("fault", [weights_times_minus_30, exponent_bit, second_moment_zeroed, nan_weight])
def test_a_state_that_was_corrupted_once_leaves_no_trace(fault, clean):
    loop = Loop(fault=once(37, fault)).train()
    assert loop.rungs() == ["roll-back"]
    (plan,) = loop.plans
    assert plan.incident == ("weights-not-finite" if fault is nan_weight else "unexplained-state")
    assert loop.trained == STEPS + (7 if fault is nan_weight else 10), "back to step 30, the last one that passed"
    assert loop.is_like(clean)
    if fault is not nan_weight:
        assert plan.onset_step == 31
        assert [e.name for e in loop.ledger.entries if e.kind == "verdict" and e.step == 50] == ["recovered"]


def test_an_audits_findings_are_called_a_corrupted_state_and_nothing_in_the_data_is_skipped():
    def always(loop):
        if loop.step == 37:
            with loop.torch.no_grad():
                weights_times_minus_30(loop)

    loop = Loop(fault=always).train()
    diagnoses = [e for e in loop.ledger.entries if e.kind == "diagnosis" and e.name == "unexplained-state"]
    assert {e.body["hypotheses"][0]["name"] for e in diagnoses} == {"corrupted-state"}
    assert loop.rungs()[:2] == ["roll-back", "roll-back"]
    assert [plan.actions[0].depth for plan in loop.plans[:2]] == [0, 1]
    assert loop.stopped
    assert loop.position <= STEPS


def test_weights_that_are_nan_at_the_same_batch_every_time_are_gone_back_from_before_it_is_skipped():
    def in_the_batch(loop):
        if loop.position == 37:
            with loop.torch.no_grad():
                nan_weight(loop)

    loop = Loop(fault=in_the_batch).train()
    assert loop.rungs() == ["roll-back", "roll-back+skip-batches"]
    assert not loop.stopped


def test_a_run_dead_from_its_start_begins_again_with_a_tenth_of_the_rate_until_it_learns(clean):
    loop = Loop(rate=100 * RATE).train()
    assert loop.rungs() == ["roll-back+scale-learning-rate"] * len(loop.plans)
    assert all(plan.incident == "dead-run" for plan in loop.plans)
    assert loop.scale == pytest.approx(0.1), "half a unit of rate does not work, a twentieth does"
    assert loop.trained - STEPS <= 32, "it was seen within its first losses"
    assert loop.losses[-1] < 0.8 * loop.losses[0]
    hypotheses = next(e.body["hypotheses"] for e in loop.ledger.entries if e.kind == "diagnosis")
    assert hypotheses[0]["name"] == "learning-rate-too-high"


def test_a_rate_far_beyond_that_is_cut_again_and_judged_anew_each_time():
    loop = Loop(rate=3000 * RATE).train()
    assert loop.rungs() == ["roll-back+scale-learning-rate"] * 2
    assert loop.scale == pytest.approx(0.01)
    # Thirty times the usual rate: it learns, but how fast differs with the processor's arithmetic.
    assert statistics.mean(loop.losses[-10:]) < 0.9 * loop.losses[0]


def test_a_run_that_no_rate_saves_is_ended():
    def overwritten(loop):
        with loop.torch.no_grad():
            loop.model.lm_head.weight.normal_(0.0, 20.0)

    loop = Loop(fault=overwritten).train()
    assert loop.rungs() == ["roll-back+scale-learning-rate"] * 4 + ["stop-run"]
    assert loop.trained == 5 * 9, "each try is judged after eight losses above the first"
