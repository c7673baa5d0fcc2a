"""A run that is given up for trouble whose numbers are finite: what it ends with, what is on disk, and what is said of it."""

from __future__ import annotations

import pytest
import torch

from self_healing import HealingConfig, SelfHealingTrainer, guard
from self_healing.actions.stop_run import StopRun
from self_healing.core.errors import UnrecoverableError
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward, once_before_forward, with_loss_times
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.report.postmortem import read_postmortem
from self_healing.snapshots.resume import choose

from .test_healed_by_themselves import CONFIG, SAVING, notes, verdicts
from .test_sick_checkpoints import at, spike_at

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def said_at_the_stop(folder):
    """Return what `stop-run` has said of itself."""
    outcomes = [
        entry.body["results"]
        for entry in read_ledger(folder / "healing/ledger.jsonl").entries
        if entry.kind == "outcome"
    ]
    return [result["text"] for results in outcomes for result in results if result["action"] == "stop-run"]


def trained_loop(folder, loss_times, config=CONFIG, *, steps=120, before_step=lambda _run, _model: None):
    """Train a loop of one's own whose loss is multiplied at some steps; return it with its model and what has ended it."""
    torch.manual_seed(0)
    model, target = torch.nn.Linear(8, 1), torch.randn(8, 1)
    inputs = torch.randn(64 * steps, 8)
    rows = torch.utils.data.TensorDataset(inputs, inputs @ target + torch.randn(64 * steps, 1))
    run = guard(model, torch.optim.AdamW(model.parameters(), 1e-4), run_dir=folder, config=config, save_every=8)

    def loss_of(batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * loss_times(run.step_number)

    try:
        for batch in run.batches(torch.utils.data.DataLoader(rows, batch_size=64)):
            before_step(run, model)
            with run.step(batch) as s:
                s.backward(loss_of, batch)
        run.close()
    except UnrecoverableError as error:
        return run, model, error
    return run, model, None


def test_a_trainer_whose_loss_stays_high_is_given_up_with_the_weights_of_before_it(tmp_path):
    trainer, sound = tiny_trainer(tmp_path, max_steps=120, **SAVING), []

    def harmed(step, _inputs, output):
        if step == 36 and not sound:
            sound.extend(weights_of(trainer.model))
        return with_loss_times(output, 30.0) if step >= 36 else output

    on_training_forward(trainer, harmed)
    with pytest.raises(UnrecoverableError, match="budget spent"):
        SelfHealingTrainer(trainer, CONFIG).train()
    assert trainer.state.global_step == 36
    assert are_equal(weights_of(trainer.model), sound)
    (said,) = said_at_the_stop(tmp_path)
    assert said.endswith("the weights are those of step 36, the last that were sound")
    assert verdicts(tmp_path)[36] == "intact"
    assert notes(tmp_path, "emergency")[-1] == "checkpoint-36 was written"
    assert choose(tmp_path).step == 36


def test_a_loop_whose_loss_stays_high_is_given_up_with_the_weights_of_before_it(tmp_path):
    sound = []

    def look(run, model):
        if run.step_number == 36:  # again and again: other data have led there after a return to the first state
            sound.append(weights_of(model))

    run, model, error = trained_loop(tmp_path, lambda step: 30.0 if step >= 36 else 1.0, before_step=look)
    assert error is not None
    assert run.step_number == 36
    assert any(are_equal(weights_of(model), each) for each in sound)
    assert verdicts(tmp_path)[36] == "intact"
    assert choose(tmp_path).step == 36


def test_a_hook_ends_a_run_in_the_step_that_has_harmed_it_and_it_ends_with_sound_weights(tmp_path):
    config = CONFIG.with_hook(lambda _incident, plan, _run: plan.then(StopRun()), "loss-spike")
    run, _model, error = trained_loop(tmp_path, lambda step: 30.0 if step == 36 else 1.0, config)
    assert run.step_number <= 36
    assert verdicts(tmp_path)[run.step_number] == "intact"
    # Its own reason was left open, so that the plan's is used.
    assert str(error).startswith("loss "), str(error)
    assert read_postmortem(tmp_path / "postmortem.json").exception["message"] == str(error)


def test_an_emergency_checkpoint_of_harmed_weights_is_said_to_be_sick(tmp_path):
    trainer = tiny_trainer(tmp_path)
    spike_at(trainer, 40)

    def fail(_model):
        raise KeyError("mine")

    once_before_forward(trainer, 41, fail)
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, HealingConfig(loss_spike_factor=3.0, max_effect="nothing")).train()
    (said,) = notes(tmp_path, "emergency")
    assert said == (
        'checkpoint-41 was written, and is marked sick (loss-spike began at step 41), so that "auto" passes over it'
    )


def test_nothing_is_said_of_an_emergency_checkpoint_that_is_sound(tmp_path):
    def fail(_model):
        raise KeyError("mine")

    trainer = tiny_trainer(tmp_path, max_steps=12, callbacks=[at("on_step_end", 9, fail)])
    with pytest.raises(KeyError, match="mine"):
        SelfHealingTrainer(trainer, CONFIG).train()
    assert notes(tmp_path, "emergency") == ["checkpoint-9 was written"]
