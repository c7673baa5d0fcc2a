"""What is written of returns is what the run did: where it really went, from where, how often, and what that cost.

What the run did is seen from outside, by a callback that only notes the steps that begin and end.
"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from transformers import TrainerCallback

from self_healing import HealingConfig, Preempted, SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import updates
from self_healing.readers import open_recording
from self_healing.replay.ledgers import LedgerReplay

from .rolled_back import loss_that_never_repeats, made
from .test_restart_from_memory import nan_in_a_weight, watched
from .test_returning import find_session, notes, raise_once_at, spoil_memory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SLEPT_S = 0.002
"""Every pass takes at least so long, so that steps that are lost have cost something."""


class Seen(TrainerCallback):
    """Notes each return, and where the rules' history stands when the next step begins."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.at = 0
        self.returns = []
        self.losses_known = []
        self.history = None

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step < self.at:
            self.returns.append((self.at, state.global_step))
            self.losses_known.append(self.healer().history.finite_count("loss"))
        self.at = state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        self.at = state.global_step

    def healer(self):
        return find_session(self.trainer)[0].desk.healer


def seen_in(trainer):
    """Note what a training does, and make each of its passes take a little time."""
    seen = Seen(trainer)
    trainer.add_callback(seen)
    trainer.model.register_forward_pre_hook(lambda module, args: time.sleep(SLEPT_S))
    return seen


def spoil_at(trainer, folder, step):
    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step and not notes(folder, "state-damaged"):
                spoil_memory(find_session(trainer)[0].rollback.keeper)

    trainer.add_callback(Spoil())


def written(folder):
    """Return the ledger's entries and the postmortem."""
    entries = read_ledger(folder / "healing" / "ledger.jsonl").entries
    return entries, json.loads((folder / "postmortem.json").read_text())


def returned(entries):
    return [entry for entry in entries if (entry.kind, entry.name) == ("signal", "returned")]


def assert_all_agree(seen, folder, metrics=None):
    """Compare every record of a run with what was seen of it; return the ledger's lines about returns."""
    entries, postmortem = written(folder)
    lines, lost = returned(entries), sum(before - after for before, after in seen.returns)
    assert [(line.body["from_step"], line.step) for line in lines] == seen.returns
    assert all(line.body["key"].endswith(f"step-{line.step}") for line in lines)
    assert seen.losses_known == [after for _, after in seen.returns], "rules know of no step that is undone"
    assert postmortem["steps_lost"] == lost
    assert sum(action["steps_lost"] for action in postmortem["recovery_actions"]) == lost
    assert sum(incident["steps_lost"] for incident in postmortem["incidents"]) == lost
    assert lost * SLEPT_S <= postmortem["seconds_lost"] <= postmortem["running_time_seconds"]
    if metrics is not None:
        assert (metrics["healing/rollbacks"], metrics["healing/steps_lost"]) == (len(seen.returns), lost)
    outcomes = [entry.body for entry in entries if entry.kind == "outcome"]
    assert not any(body["restored"] or body["step_after"] is not None for body in outcomes), "asked for, not done"
    return lines


def assert_replayed(folder, history):
    """Live through the ledger again: the same plans, and in the end the same past."""
    again = LedgerReplay(open_recording(folder / "healing" / "ledger.jsonl"), None, ())
    assert (again.result.exact, again.result.differences, again.result.approximate) == (True, [], [])
    assert json.dumps(again._attempt.healer.history.state_dict()) == json.dumps(history)


def trained(trainer, **settings):
    """Train, and return the metrics and the history as it was when the session closed."""
    past = {}

    class Last(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            past["session"] = find_session(trainer)[0]

    trainer.add_callback(Last())
    output = SelfHealingTrainer(trainer, HealingConfig(**settings)).train()
    return output.metrics, past["session"].desk.healer.history.state_dict()


def test_a_state_that_is_whole_is_where_the_run_is_afterwards(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40)
    seen = seen_in(trainer)
    raise_once_at(trainer, 29)
    metrics, history = trained(trainer, snapshot_every_steps=10)
    assert seen.returns == [(29, 20)]
    (line,) = assert_all_agree(seen, tmp_path, metrics)
    assert (line.body["asked"], line.body["because"]) == (line.body["key"], "")
    assert_replayed(tmp_path, history)


def test_a_damaged_state_is_not_said_to_be_returned_to(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40)
    seen = seen_in(trainer)
    raise_once_at(trainer, 28)
    spoil_at(trainer, tmp_path, 27)
    metrics, history = trained(trainer, snapshot_every_steps=10)
    assert seen.returns == [(28, 10)]
    (line,) = assert_all_agree(seen, tmp_path, metrics)
    assert line.body["asked"].endswith("step-20")
    assert "changed in memory" in line.body["because"]
    (action,) = written(tmp_path)[1]["recovery_actions"]
    assert "changed in memory" in action["said"]
    assert_replayed(tmp_path, history)


def test_a_state_whose_first_loss_is_rejected_is_one_of_two_returns(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=100)
    seen = seen_in(loss_that_never_repeats(trainer))
    raise_once_at(trainer, 75)
    metrics, history = trained(trainer, snapshot_every_steps=20)
    assert [after for _, after in seen.returns] == [60, 40]
    first, second = assert_all_agree(seen, tmp_path, metrics)
    assert (first.body["because"], second.body["asked"]) == ("", first.body["key"])
    assert "the first time" in second.body["because"]
    assert_replayed(tmp_path, history)


def test_a_return_that_a_signal_forestalls_is_not_told_as_done(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40)
    seen = seen_in(trainer)
    nan_in_a_weight(trainer, 25)

    class Asked(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 25:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer.add_callback(Asked())
    with pytest.raises(Preempted):
        trained(trainer, snapshot_every_steps=10)
    assert trainer.state.global_step == 26
    assert seen.returns == []
    entries, postmortem = written(tmp_path)
    asked = [entry.body["returns_to"] for entry in entries if entry.kind == "outcome" and entry.body["returns_to"]]
    assert asked, "a return was planned"
    assert assert_all_agree(seen, tmp_path) == []
    dropped = [entry.body for entry in entries if entry.name == "return-dropped"]
    assert [body["asked"] for body in dropped] == asked
    assert "SIGTERM" in dropped[0]["because"]
    actions = [action for action in postmortem["recovery_actions"] if "rollback" in str(action)]
    assert actions[0]["outcome"] == "failed"
    assert "SIGTERM" in actions[0]["said"]
    again = LedgerReplay(open_recording(tmp_path / "healing" / "ledger.jsonl"), None, ())
    assert (again.result.exact, again.result.differences) == (True, [])
    assert again._attempt.healer.history.step == 26


def test_training_entered_anew_at_another_state_than_asked_says_which(tmp_path):
    trainer = made("dropout", tmp_path)
    seen = seen_in(trainer)
    raise_once_at(trainer, 8)
    spoil_at(trainer, tmp_path, 7)
    watch = watched(trainer)
    metrics, history = trained(trainer, snapshot_every_steps=3)
    assert (watch.entered, seen.returns) == (2, [(8, 3)])
    (line,) = assert_all_agree(seen, tmp_path, metrics)
    assert line.body["asked"].endswith("step-6")
    assert "changed in memory" in line.body["because"]
    assert_replayed(tmp_path, history)


def test_a_return_to_a_checkpoint_is_told_when_the_run_is_there(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40, save_strategy="steps", save_steps=10)
    seen = seen_in(trainer)
    raise_once_at(trainer, 29)
    metrics, history = trained(trainer, snapshot_memory_fraction=0.0)
    assert seen.returns == [(29, 20)]
    entries, postmortem = written(tmp_path)
    (line,) = returned(entries)
    assert (line.step, line.body["from_step"]) == (20, 29)
    assert line.body["key"].endswith("checkpoint-20")
    assert (postmortem["steps_lost"], seen.losses_known) == (9, [20])
    assert (metrics["healing/rollbacks"], metrics["healing/steps_lost"], metrics["healing/trained_steps"]) == (1, 9, 49)
    assert 9 * SLEPT_S <= metrics["healing/seconds_lost"] <= postmortem["running_time_seconds"]
    assert updates(trainer) == 40
    assert_replayed(tmp_path, history)
