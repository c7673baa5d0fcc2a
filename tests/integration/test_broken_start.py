"""A model that is handed over with NaN in its weights: no return can mend that, and the run says so at once."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing import HealingConfig, SelfHealingTrainer, UnrecoverableError
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.report.postmortem import postmortem_path, read_postmortem

from .plain_loops import guarded, make, weight_nan

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SENTENCE = r"the state that this training began with is not finite \(model\.norm\.weight\).*how the model was loaded"


def spoil(model):
    with torch.no_grad():
        model.model.norm.weight[3] = math.nan


def spoiling(event):
    """Return a callback that writes the NaN before the first step."""
    from transformers import TrainerCallback

    def handle(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            spoil(model)

    return type("Spoil", (TrainerCallback,), {event: handle})()


def lines(folder, kind):
    entries = read_ledger(folder / "healing" / "ledger.jsonl").entries
    return [(entry.name, entry.body) for entry in entries if entry.kind == kind]


@pytest.mark.parametrize("event", ["", "on_train_begin", "on_step_begin"])
@pytest.mark.parametrize("states", [0.25, 0.0], ids=["states", "none"])
def test_a_trainer_stops_before_its_first_step_and_names_the_weights(event, states, tmp_path):
    model = tiny_model()
    if not event:
        spoil(model)
    trainer = tiny_trainer(tmp_path, model=model, callbacks=[spoiling(event)] if event else [], max_steps=5)
    passes = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(UnrecoverableError, match=SENTENCE):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=states)).train()
    assert not passes, "no step is made in vain"
    assert [name for name, _ in lines(tmp_path, "incident")] == ["weights-not-finite"]
    assert [body["rung"] for _, body in lines(tmp_path, "plan")] == ["stop-run"]
    told = read_postmortem(postmortem_path(tmp_path))
    assert (told.exit_reason, told.last_step) == ("unrecoverable", 0)
    assert any("how the model was loaded" in advice for advice in told.advice)


def test_a_loop_stops_before_its_first_step(tmp_path):
    loop = make()
    weight_nan(loop.net)
    with pytest.raises(UnrecoverableError, match=r"began with is not finite \(first\.weight\)"):
        guarded(loop, tmp_path)
    assert loop.bodies == 0


@pytest.mark.parametrize("config", [{"nan_action": "warn"}, {"mode": "observe"}, {"mode": "advise"}], ids=str)
def test_who_wants_to_be_told_only_is_told_and_trains_on(config, tmp_path):
    model = tiny_model()
    spoil(model)
    trainer = tiny_trainer(tmp_path, model=model, max_steps=3)
    SelfHealingTrainer(trainer, HealingConfig(**config)).train()
    assert trainer.state.global_step == 3
    notes = [body["text"] for name, body in lines(tmp_path, "note") if name == "began-not-finite"]
    assert len(notes) == 1
    assert "model.norm.weight" in notes[0]


def test_a_mask_of_infinities_among_the_frozen_parameters_is_no_broken_start(tmp_path):
    model = tiny_model()
    model.mask = torch.nn.Parameter(torch.full((4, 4), -math.inf).triu(1), requires_grad=False)
    trainer = tiny_trainer(tmp_path, model=model, max_steps=3)
    SelfHealingTrainer(trainer).train()
    assert lines(tmp_path, "incident") == []
