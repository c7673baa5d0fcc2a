"""Trials of a hyperparameter search: pruning one is a decision, and what is not guarded is said."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from self_healing import SelfHealingTrainer, healing
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.report.postmortem import read_postmortem

pytestmark = pytest.mark.torch


class TrialPruned(Exception):
    """What optuna raises, which need not be installed."""


def pruned_at(folder, step):
    from transformers import TrainerCallback

    class Prune(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            if state.global_step == step:
                raise TrialPruned("the others are better")

    return tiny_trainer(folder, max_steps=9, eval_strategy="steps", eval_steps=3, callbacks=[Prune()])


def test_a_pruned_trial_is_neither_saved_nor_called_a_failure(tmp_path):
    with pytest.raises(TrialPruned, match="the others are better") as raised:
        SelfHealingTrainer(pruned_at(tmp_path, 6)).train()
    assert raised.value.__cause__ is None
    assert not list(tmp_path.glob("checkpoint-*"))
    told = read_postmortem(tmp_path / "postmortem.json")
    assert (told.exit_reason, told.last_step, told.incidents, told.advice) == ("pruned", 6, [], [])
    names = {entry.name for entry in read_ledger(tmp_path / "healing" / "ledger.jsonl").entries}
    assert not names & {"emergency", "crashed", "raised"}
    SelfHealingTrainer(pruned_at(tmp_path, None)).train()
    assert read_postmortem(tmp_path / "postmortem.json").exit_reason == "completed"


def test_a_trial_of_the_trainers_own_search_runs_without_a_guard_and_it_is_said(tmp_path, caplog):
    trainer = tiny_trainer(tmp_path, max_steps=2)
    caplog.set_level(logging.WARNING, "self_healing.trainer")
    with suppress(RuntimeError), healing(trainer):  # without any backend installed the trainer knows no trials
        trainer.train(trial={"number": 0})
    assert not (tmp_path / "healing").exists()
    assert [record.getMessage() for record in caplog.records if "not guarded" in record.getMessage()]
    caplog.clear()
    with pytest.raises((RuntimeError, ValueError)):  # no backend, or no `model_init`: it is the trainer's own method
        SelfHealingTrainer(trainer).hyperparameter_search(backend="optuna")
    assert "not guarded" in caplog.text
