"""What a run writes after it has returned to before some trouble: it is as good as that of a run that never had it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import self_healing
from self_healing import HealingConfig, SelfHealingTrainer, guard
from self_healing.cli.main import main
from self_healing.core.errors import UnrecoverableError
from self_healing.drills.faults.poisoned_batches import PoisonedBatches
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import same, updates
from self_healing.readers import open_recording
from self_healing.replay import replay
from self_healing.report.postmortem import postmortem_path, read_postmortem
from self_healing.snapshots.manifest import read_manifest

from .test_rollback_drills import stop_after

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SAVING = {"save_strategy": "steps", "save_steps": 10, "logging_steps": 5}


def break_once_after(trainer, *steps):
    """Write a NaN into a weight after the update of some steps, once each."""
    import torch
    from transformers import TrainerCallback

    left = set(steps)

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in left:
                left.discard(state.global_step)
                with torch.no_grad():
                    next(trainer.model.parameters()).view(-1)[0] = float("nan")
                    next(p for p in trainer.model.parameters() if p.dim() == 1)[0] = float("nan")

    trainer.add_callback(Break())
    return trainer


def conditions(folder):
    found = {int(each.name.split("-")[1]): read_manifest(each) for each in folder.glob("checkpoint-*")}
    return {step: str(found[step].verdict.condition) for step in sorted(found)}


def ledger(folder):
    return [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]


def said_of_returns(folder):
    outcomes = [line["body"] for line in ledger(folder) if line["kind"] == "outcome"]
    return [(body["rung"], body["results"][-1]["text"]) for body in outcomes if "roll-back" in body["rung"]]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), **SAVING)
    trainer.train()
    return trainer


def test_checkpoints_after_an_exact_return_can_be_trusted_and_the_incident_is_over_at_the_end(clean, tmp_path):
    trainer = break_once_after(tiny_trainer(tmp_path, **SAVING), 53)
    assert SelfHealingTrainer(trainer).train().metrics["healing/rollbacks"] == 1
    assert same(trainer, clean)
    assert conditions(tmp_path) == dict.fromkeys(range(10, 70, 10), "intact")
    postmortem = read_postmortem(postmortem_path(tmp_path))
    (found,) = [each for each in postmortem.incidents if each["name"] == "weights-not-finite"]
    assert (found["closed"], found["closed_step"], postmortem.advice) == ("recovered", 60, [])
    assert main(["diagnose", str(tmp_path)]) == 0
    replayed = replay(open_recording(tmp_path / "healing" / "ledger.jsonl"))
    assert (replayed.exact, replayed.differences) == (True, [])
    longer = tiny_trainer(tmp_path, **SAVING | {"max_steps": 62})
    SelfHealingTrainer(longer, HealingConfig(shared_memory=False)).train(resume_from_checkpoint="auto")
    told = [line["body"]["text"] for line in ledger(tmp_path) if line["name"] == "resuming"]
    assert told[-1] == "checkpoint-60 is resumed from"


def raises_when_made_up(trainer, at):
    """Have the loss of a step be no number, once, and the pass that makes it up raise, once."""
    seen = []

    def spoil(module, args, output):
        if module.training and trainer.state.global_step >= at and len(seen) < 2:
            seen.append(trainer.state.global_step)
            if len(seen) == 2:
                raise ConnectionError("connection reset by peer")
            output["loss"] = output["loss"] * float("nan")

    trainer.model.register_forward_hook(spoil)
    return trainer


def test_what_raises_when_a_step_is_made_up_is_answered_as_in_any_step(clean, tmp_path):
    trainer = raises_when_made_up(tiny_trainer(tmp_path, **SAVING), 33)
    assert SelfHealingTrainer(trainer).train().metrics["healing/rollbacks"] == 1
    assert same(trainer, clean)


def test_a_checkpoint_has_the_updates_that_its_name_says_where_one_has_raised_when_it_was_made_up(tmp_path):
    import torch

    trainer = raises_when_made_up(tiny_trainer(tmp_path, **SAVING | {"save_strategy": "no"}), 5)
    with pytest.raises(ConnectionError):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()
    (folder,) = tmp_path.glob("checkpoint-*")
    moments = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    assert {int(each["step"]) for each in moments.values()} == {int(folder.name.split("-")[1])}


INSTALLED = """
from transformers import TrainerCallback

class Deciding(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise ValueError("this ends the run")
"""


def test_a_callback_that_is_installed_beside_us_is_as_much_somebody_elses_as_one_in_a_script(tmp_path):
    neighbour, made = Path(self_healing.__file__).parents[1] / "neighbour" / "callbacks.py", {}
    exec(compile(INSTALLED, str(neighbour), "exec"), made)  # as though it lay there
    trainer = tiny_trainer(tmp_path, **SAVING)
    trainer.add_callback(made["Deciding"]())
    with pytest.raises(ValueError, match="this ends the run"):
        SelfHealingTrainer(trainer).train()
    assert said_of_returns(tmp_path) == []


def test_a_second_one_that_comes_once_costs_no_more_data_than_from_where_it_began(tmp_path):
    trainer = break_once_after(tiny_trainer(tmp_path, max_steps=70, logging_steps=5), 23, 49)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    first, second = said_of_returns(tmp_path)
    assert first == ("roll-back", "a return to memory-3-step-20, step 20, is asked for")
    assert second == ("roll-back+skip-batches", "the data of steps 49 to 51 are left out")
    returns = [line["step"] for line in ledger(tmp_path) if line["name"] == "returned"]
    assert returns == [20, 43], "a state between the two can be trusted"
    assert updates(trainer) == 70


def test_steps_that_are_trained_again_are_not_told_as_left_out(clean, tmp_path):
    trainer = break_once_after(tiny_trainer(tmp_path, **SAVING), 23)
    metrics = SelfHealingTrainer(trainer).train().metrics
    assert same(trainer, clean)
    assert (metrics["healing/rollbacks"], metrics["healing/skipped_steps"], metrics["healing/replaced_steps"]) == (
        1,
        0,
        0,
    )
    assert read_postmortem(postmortem_path(tmp_path)).skipped_steps == 0


def test_a_run_that_is_given_up_with_broken_weights_ends_with_sound_ones_and_has_them_on_disk(tmp_path):
    import torch

    trainer, ends = tiny_trainer(tmp_path, logging_steps=5), []

    def spoil(module, args):  # when the passes of a step have come, again and again
        ends.append(1)
        if len(ends) > 40 and len(ends) % 4 == 0:
            module.weight.data[0, 0] = float("nan")

    trainer.model.model.layers[0].self_attn.q_proj.register_forward_pre_hook(spoil)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(max_recovery_attempts=2)).train()
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    assert updates(trainer) == trainer.state.global_step
    assert conditions(tmp_path) == {trainer.state.global_step: "intact"}
    told = read_postmortem(postmortem_path(tmp_path))
    trained = told.final_metrics["healing/trained_steps"] - told.final_metrics["healing/steps_lost"]
    assert (trained, told.final_metrics["healing/steps_lost"]) == (trainer.state.global_step, told.steps_lost)


def test_data_that_were_left_out_stay_out_when_the_run_is_resumed_from_disk(tmp_path):
    """A trainer is brought to its place by the number of steps, which lies before what was left out."""

    def trained(name, *, until=60, poisons=True, **how):
        trainer = tiny_trainer(tmp_path / name, save_strategy="steps", save_steps=30)
        if poisons:
            PoisonedBatches().plant(trainer)
        stop_after(trainer, until)
        SelfHealingTrainer(trainer).train(**how)
        return trainer

    whole = trained("whole")
    assert [line["step"] for line in ledger(tmp_path / "whole") if line["name"] == "returned"]
    trained("resumed", until=31)
    resumed = trained("resumed", poisons=False, resume_from_checkpoint=True)  # the poison is not met again
    assert updates(resumed) == resumed.state.global_step == 60
    assert same(resumed, whole)


def test_a_loop_goes_on_from_the_only_checkpoint_that_it_wrote_after_a_return(tmp_path):
    import torch
    from torch import nn

    def loop(*, breaks_after=None, resume=False):
        torch.manual_seed(0)
        model, steps, left = nn.Linear(8, 1), [], {breaks_after}
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        rows = torch.randn(160, 8)
        with guard(model, optimizer, run_dir=tmp_path, save_every=20, resume=resume) as run:
            for batch in run.batches(torch.utils.data.DataLoader(rows, batch_size=8)):
                steps.append(run.step_number)
                with run.step(batch) as step:
                    step.backward(lambda x: (model(x) - x.sum(1, keepdim=True)).pow(2).mean(), batch)
                if run.step_number in left:
                    left.clear()
                    model.weight.data[0, 0] = float("nan")
        return steps

    assert loop(breaks_after=18)[-1] == 19
    assert conditions(tmp_path) == {20: "intact"}
    assert read_postmortem(postmortem_path(tmp_path)).advice == []
    assert loop(resume="auto") == [], "all twenty steps are done"
