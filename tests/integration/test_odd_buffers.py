"""A buffer that ceases to be finite is trouble, as a weight is; one that never was finite is none."""

from __future__ import annotations

import json
import math

import pytest
import torch

from self_healing import HealingConfig, SelfHealingTrainer, UnrecoverableError
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.report.postmortem import postmortem_path, read_postmortem

from .plain_loops import bare, guarded, make, nan_loss, plant, settings

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def after(step, do, *, times=1):
    """Return what does something after a step of a loop, as often as the loop comes by it or less."""
    left = [times]

    def each(run, _step):
        if run.step_number == step and left[0]:
            left[0] -= 1
            do()

    return each


def incidents(folder):
    return [each["name"] for each in read_postmortem(postmortem_path(folder)).incidents]


def ledger(folder):
    return read_ledger(folder / "healing" / "ledger.jsonl").entries


def notes(folder, name):
    return [line.body["text"] for line in ledger(folder) if line.kind == "note" and line.name == name]


def verdict_of(folder):
    return json.loads((folder / "healing_manifest.json").read_text())["verdict"]


def test_a_running_mean_that_becomes_nan_is_found_and_put_back(tmp_path):
    clean, loop = bare(make()), make()
    mean = loop.net.norm.running_mean
    guarded(loop, tmp_path, each=after(13, lambda: mean.fill_(math.nan)))
    assert incidents(tmp_path) == ["unexplained-state"]
    assert "norm.running_mean" in notes(tmp_path, "state-unexplained")[0]
    left, expected = loop.state()["model"], clean.state()["model"]
    assert all(torch.equal(left[name], value) for name, value in expected.items())


def test_a_checkpoint_that_would_hold_it_is_not_written_and_the_run_returns_at_once(tmp_path):
    loop = make()
    mean = loop.net.norm.running_mean
    spoil = after(13, lambda: mean.fill_(math.nan))
    guarded(loop, tmp_path, config=settings(snapshot_every_steps=10), each=spoil, save_every=14)
    assert next(line.step for line in ledger(tmp_path) if line.kind == "incident") == 14
    files = sorted(tmp_path.glob("checkpoint-*/pytorch_model.bin"))
    assert files
    for file in files:
        assert torch.isfinite(torch.load(file)["norm.running_mean"]).all()


def test_a_running_mean_that_becomes_nan_every_time_ends_the_run(tmp_path):
    loop = make()
    mean = loop.net.norm.running_mean
    with pytest.raises(UnrecoverableError):
        guarded(loop, tmp_path, each=after(13, lambda: mean.fill_(math.nan), times=99))


def test_masks_of_infinities_are_no_trouble_whether_there_from_the_start_or_made_later(tmp_path):
    loop = make()
    loop.net.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    loop.net.register_buffer("unset", torch.tensor(math.nan))
    later = after(8, lambda: loop.net.register_buffer("cached", torch.full((2,), -math.inf)))
    guarded(loop, tmp_path, each=later, save_every=15)
    assert incidents(tmp_path) == []
    assert verdict_of(tmp_path / "checkpoint-15")["condition"] == "intact"


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("kind", ["buffer", "frozen weight"])
def test_a_run_whose_model_has_a_mask_of_infinities_is_gone_on_with(kind, has_manifest, tmp_path):
    for resume in (None, "auto"):
        loop, mask = make(), torch.full((4, 4), -math.inf).triu(1)
        if kind == "buffer":
            loop.net.register_buffer("mask", mask)
        else:
            loop.net.mask = torch.nn.Parameter(mask, requires_grad=False)
        guarded(loop, tmp_path, epochs=1, config=settings(shared_memory=False), save_every=5, resume=resume)
        if not has_manifest:  # as one who trains without a guard leaves it
            for path in tmp_path.glob("checkpoint-*/healing_manifest.json"):
                path.unlink()
    assert "checkpoint-10 is resumed from" in notes(tmp_path, "resuming")[0]
    assert loop.bodies == 0


def test_buffers_that_go_away_end_no_run(tmp_path):
    """One is emptied, one is deleted, and a loss that is no number once has the step done again in between."""
    loop = make()
    for name in ("cache", "table"):
        loop.net.register_buffer(name, torch.ones(3))
    plant(loop.net, 13, nan_loss)
    loop.net.before[12] = lambda net: setattr(net, "cache", None)
    loop.net.before[14] = lambda net: delattr(net, "table")
    guarded(loop, tmp_path)
    assert loop.bodies == 30
    weights = bare(make()).state()["model"]
    assert all(torch.equal(loop.net.state_dict()[name], value) for name, value in weights.items())


def test_infinities_that_the_run_writes_itself_are_accepted_when_they_come_back(tmp_path):
    loop = make()
    loop.net.register_buffer("best", torch.tensor(5.0))
    guarded(loop, tmp_path, each=after(13, lambda: loop.net.best.fill_(math.inf), times=99), save_every=25)
    assert len(notes(tmp_path, "buffers-not-finite")) == 1
    assert verdict_of(tmp_path / "checkpoint-25")["condition"] != "sick"
    assert loop.bodies > 30, "it was trained to its end"


def test_without_states_a_checkpoint_that_holds_it_is_called_sick(tmp_path):
    from transformers import TrainerCallback

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step == 12:
                model.statistics.fill_(math.nan)

    model = tiny_model()
    model.register_buffer("statistics", torch.ones(4))
    model.register_buffer("mask", torch.full((4, 4), -math.inf))
    trainer = tiny_trainer(
        tmp_path, model=model, callbacks=[Spoil()], max_steps=20, save_strategy="steps", save_steps=10
    )
    with pytest.raises(UnrecoverableError, match="not finite"):  # it is spoiled each time
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0.0)).train()
    assert verdict_of(tmp_path / "checkpoint-10")["condition"] == "intact"
    assert verdict_of(tmp_path / "checkpoint-20")["condition"] == "sick"
