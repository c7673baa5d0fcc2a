"""What a long-running project asked for after its first manual restarts: each wish as one test on a loop of one's own.

The check of collectives needs ranks, which are real processes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from self_healing import Effect, HealingConfig, guard
from self_healing.core.action import Action, Done
from self_healing.report.postmortem import read_postmortem

from .rank_launcher import launch

pytestmark = pytest.mark.torch
RATE = 1e-2


class Average:
    """Weights that follow those of a model."""

    def __init__(self, model):
        self.model = model
        self.weights = [p.detach().clone() for p in model.parameters()]

    def update(self):
        for mine, theirs in zip(self.weights, self.model.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)

    def state_dict(self):
        return {"weights": list(self.weights)}

    def load_state_dict(self, state):
        for mine, kept in zip(self.weights, state["weights"], strict=True):
            mine.copy_(kept)


@dataclass
class Trained:
    """What came of a loop."""

    model: nn.Module
    average: Average
    losses: list[float]
    rates: list[float]
    """At each update, as the optimizer had it."""
    figures: dict[str, float]
    ledger: list[dict]


def trained(folder, fault=lambda _model, _optimizer, _run: None, config=None, *, rows=240, epochs=1, most_rows=None):
    """Run a plain loop under guard(), with a fault before its steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    data = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 8, generator=data)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
    average, losses, rates = Average(model), [], []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))

    def loss_of(batch):
        if most_rows is not None and len(batch[0]) > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    config = config or HealingConfig(snapshot_every_steps=5)
    with guard(model, optimizer, config=config, run_dir=folder, also=[average]) as run:
        for _ in range(epochs):
            for batch in run.batches(loader):
                fault(model, optimizer, run)
                with run.step(batch) as s:
                    s.backward(loss_of, batch)
                losses.append(float(s.loss))
                average.update()
    lines = (folder / "healing" / "ledger.jsonl").read_text().splitlines()
    return Trained(model, average, losses, rates, run.figures(), list(map(json.loads, lines)))


def once(at, harm, times=1):
    """Do harm before a step, so many times in all."""
    done = []

    def fault(model, optimizer, run):
        if run.step_number == at and len(done) < times:
            done.append(at)
            harm(model, optimizer)

    return fault


def break_a_weight(model, _optimizer):
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")


def bodies(run, name):
    return [entry["body"] for entry in run.ledger if entry["name"] == name]


def plans(run):
    return ["+".join(a["name"] for a in entry["body"]["actions"]) for entry in run.ledger if entry["kind"] == "plan"]


def test_automatic_checkpoint_rollback(tmp_path):
    """Weights that are broken are put back with the data since then, and the run ends as if nothing had happened."""
    clean = trained(tmp_path / "clean")
    healed = trained(tmp_path / "healed", once(33, break_a_weight))
    assert plans(healed) == ["roll-back"]
    for name, value in clean.model.state_dict().items():
        assert torch.equal(healed.model.state_dict()[name], value)
    for mine, theirs in zip(healed.average.weights, clean.average.weights, strict=True):
        assert torch.equal(mine, theirs), "what is in also= goes back as well"
    assert bodies(healed, "returned")[0]["key"].endswith("-step-30")


def test_lr_reduction_on_rollback_and_ramp_back(tmp_path):
    """Where a return alone does not help, the next one goes further back and cuts the rate."""
    config = HealingConfig(snapshot_every_steps=5, lr_factor=0.25, lr_ramp_steps=20)
    run = trained(tmp_path, once(33, break_a_weight, times=3), config)
    assert plans(run) == ["roll-back", "roll-back+skip-batches", "roll-back+skip-batches+rewarm-learning-rate"]
    cut = next(place for place, rate in enumerate(run.rates) if rate < RATE)
    assert run.rates[:cut] == [RATE] * cut
    ramp = run.rates[cut : cut + 20]
    assert ramp[0] == pytest.approx(RATE * 0.25, rel=0.2)
    assert ramp == sorted(ramp)
    assert len(set(ramp)) == 20
    assert run.rates[cut + 20 :] == [RATE] * len(run.rates[cut + 20 :])


def test_gradient_anomaly_detection_in_the_hot_path(tmp_path):
    """An infinite gradient behind a finite loss is never applied; an explosion is clipped before it reaches the loss."""
    clean = trained(tmp_path / "clean")
    handles = []

    def spoil(model, _optimizer):
        def hook(gradient):
            handles.pop().remove()
            return gradient * float("inf")

        handles.append(model[3].weight.register_hook(hook))

    healed = trained(tmp_path / "healed", once(33, spoil))
    assert all(torch.equal(a, b) for a, b in zip(healed.model.parameters(), clean.model.parameters(), strict=True))
    assert healed.figures["healing/nan_count"] == 1

    def blow_up(model, _optimizer):
        def hook(gradient):
            handles.pop().remove()
            return gradient * 1e4

        handles.append(model[3].weight.register_hook(hook))

    clipped = trained(tmp_path / "clipped", once(43, blow_up))
    told = [body["said"] for body in bodies(clipped, "reflex")]
    assert any("this one gradient was clipped" in said for said in told)
    assert max(clipped.losses) < 2 * max(clean.losses)


def test_oom_recovery_with_a_smaller_micro_batch(tmp_path):
    """The batch goes in pieces, and the loss of the whole comes out; nothing of the user's loop is told."""
    config = HealingConfig(snapshot_every_steps=5, oom_action="split")
    run = trained(tmp_path, config=config, rows=60, most_rows=2)
    assert run.figures["healing/oom_splits"] > 0
    assert len(run.losses) == 15
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    config = HealingConfig(snapshot_every_steps=5, oom_action="raise")
    with pytest.raises(torch.OutOfMemoryError):
        trained(tmp_path / "raised", config=config, rows=60, most_rows=2)


POLICY = """
nan_action = "skip"            # skip, warn, rollback, raise
max_consecutive_skips = 10
rollback_steps = 10            # not set: the newest known good state
max_recovery_attempts = 5
lr_factor = 0.5
lr_ramp_steps = 200
oom_action = "split"           # split, retry, raise
"""


def test_configurable_recovery_policy_via_toml(tmp_path):
    path = tmp_path / "healing.toml"
    path.write_text(POLICY + "snapshot_every_steps = 5\n")
    run = trained(tmp_path / "out", once(33, break_a_weight), str(path))
    assert int(bodies(run, "returned")[0]["key"].rpartition("-")[2]) <= 31 - 10, "as far back as the policy says"
    defaults = HealingConfig()
    assert (defaults.nan_action, defaults.max_consecutive_skips, defaults.rollback_steps) == ("skip", 10, None)
    assert (defaults.max_recovery_attempts, defaults.lr_factor, defaults.lr_ramp_steps) == (5, 0.5, 200)
    assert defaults.oom_action == "split"
    assert defaults.collective_check_interval_s == 10.0


def test_collective_health_check_on_by_default(tmp_path):
    """A rank that stops answering is named within seconds, with where it stood, and the others leave for a restart."""
    run = tmp_path / "run"
    told = launch(tmp_path, ["--out", str(run), "--fault", "stop"])
    assert told.codes == [[76, None]], "rank 0 has left with the code of a hang, and the stopped one had to be ended"
    texts = [
        json.loads(line)["body"].get("text", "") for line in (run / "healing" / "ledger.jsonl").read_text().splitlines()
    ]
    assert any("rank 1: its process is stopped (SIGSTOP)" in text for text in texts)
    assert any("rank 1 stood in" in text for text in texts)


def test_structured_recovery_event_log(tmp_path):
    """Every decision with step, cause and what came of it, as JSON lines and in the postmortem."""
    run = trained(tmp_path, once(33, break_a_weight))
    kinds = [(entry["kind"], entry["name"]) for entry in run.ledger]
    for wanted in (
        ("incident", "weights-not-finite"), ("diagnosis", "weights-not-finite"), ("plan", "weights-not-finite"),
        ("outcome", "weights-not-finite"), ("signal", "returned"), ("note", "run-ended"),
    ):  # fmt: skip
        assert wanted in kinds
    postmortem = read_postmortem(tmp_path / "postmortem.json")
    assert postmortem.exit_reason == "completed"
    assert postmortem.recovery_actions[0]["actions"] == ["rollback"]
    assert postmortem.incidents


@dataclass(frozen=True)
class ShrinkDropout(Action):
    """A researcher's own idea."""

    effect: ClassVar[Effect] = Effect.RECIPE

    def apply(self, run):
        return Done("dropped less")


def test_on_instability_training_hook(tmp_path):
    seen = []

    def hook(incident, plan, run):
        seen.append((incident.name, plan.rung, incident.diagnosis.leading.name))
        return plan.then(ShrinkDropout())

    config = HealingConfig(snapshot_every_steps=5, on_instability={"weights-not-finite": hook})
    run = trained(tmp_path / "extended", once(33, break_a_weight), config)
    assert seen == [("weights-not-finite", "roll-back", "corrupted-state")]
    (note,) = bodies(run, "hook-replaced")
    assert "shrink-dropout" in note["text"], run.ledger
