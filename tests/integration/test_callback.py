"""The callback: neutral when healthy, holds back what is not finite, and says what it cannot do."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from self_healing import HealingConfig, SelfHealingCallback, UnrecoverableError
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


def postmortem(folder):
    return json.loads((folder / "postmortem.json").read_text())


def notes(folder):
    entries = read_ledger(folder / "healing" / "ledger.jsonl").entries
    return {entry.name: entry.body for entry in entries if entry.kind == "note"}


def test_a_healthy_run_is_bit_identical_and_what_is_missing_is_said(tmp_path):
    import torch

    stock = tiny_trainer(tmp_path / "stock")
    stock.train()
    trainer = tiny_trainer(tmp_path / "ours", callbacks=[SelfHealingCallback()])
    trainer.train()
    assert torch.equal(weights(stock), weights(trainer))
    assert losses(stock) == losses(trainer)
    assert trainer.state.log_history[0].keys() == stock.state.log_history[0].keys(), "nothing to tell, nothing logged"
    assert "SelfHealingTrainer" in notes(tmp_path / "ours")["callback-only"]["text"]
    assert postmortem(tmp_path / "ours")["exit_reason"] == "completed"


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch"])
def test_an_update_that_is_not_finite_is_held_back_and_counted(optim, tmp_path):
    trainer = tiny_trainer(tmp_path, optim=optim, callbacks=[SelfHealingCallback()])
    FAULTS["infinite-gradient"]().plant(trainer)
    trainer.train()
    assert math.isfinite(weights(trainer).sum())
    logged = [entry for entry in trainer.state.log_history if "healing/skipped_steps" in entry]
    assert {entry["healing/skipped_steps"] for entry in logged} == {1}
    told = postmortem(tmp_path)
    assert told["skipped_steps"] == 1
    assert told["recovery_actions"][0]["actions"] == ["skip_step"]
    stock = tiny_trainer(tmp_path / "stock", optim=optim)
    FAULTS["infinite-gradient"]().plant(stock)
    stock.train()
    assert math.isnan(weights(stock).sum()), "what happens without us"


def test_a_cut_learning_rate_is_applied_to_the_update_only(tmp_path):
    seen = []
    callback = SelfHealingCallback()
    trainer = tiny_trainer(tmp_path, max_steps=6, lr_scheduler_type="constant", callbacks=[callback])
    original = trainer.create_optimizer

    def create(*args, **kwargs):
        optimizer = original(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        return optimizer

    trainer.create_optimizer = create

    class Cut(type(trainer.callback_handler.callbacks[0]).__mro__[-2]):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                callback._watched.abilities.scale_learning_rate(0.5, floor=None)

    trainer.add_callback(Cut())
    trainer.train()
    assert seen == [5e-3, 5e-3, 2.5e-3, 2.5e-3, 2.5e-3, 2.5e-3]
    assert trainer.optimizer.param_groups[0]["lr"] == 5e-3


def test_a_hopeless_run_is_stopped_and_does_not_look_like_a_success(tmp_path):
    trainer = tiny_trainer(tmp_path, logging_steps=1, max_steps=120, callbacks=[SelfHealingCallback()])
    FAULTS["nan-from-then-on"]().plant(trainer)
    with pytest.raises(UnrecoverableError):
        trainer.train()
    assert postmortem(tmp_path)["exit_reason"] == "unrecoverable"
    assert trainer.state.global_step < 120


def test_switched_off_it_leaves_no_trace_and_observing_changes_nothing(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path / "observe", callbacks=[SelfHealingCallback(HealingConfig(mode="observe"))])
    FAULTS["infinite-gradient"]().plant(trainer)
    trainer.train()
    assert math.isnan(weights(trainer).sum())
    monkeypatch.setenv("SELF_HEALING", "off")
    tiny_trainer(tmp_path / "off", max_steps=2, callbacks=[SelfHealingCallback()]).train()
    assert not (tmp_path / "off" / "healing").exists()


SCRIPT = """
import sys
from self_healing import SelfHealingCallback
from self_healing.drills.tiny_training import tiny_trainer
trainer = tiny_trainer(sys.argv[1], max_steps=5, callbacks=[SelfHealingCallback()])
trainer.model.register_forward_hook(lambda *_: 1 / 0 if trainer.state.global_step == 3 else None)
trainer.train()
"""


def test_an_exception_that_ends_the_process_is_in_the_postmortem(tmp_path):
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    told = postmortem(tmp_path)
    assert (told["exit_reason"], told["exception_type"], told["last_step"]) == ("exception", "ZeroDivisionError", 3)


def test_after_an_exception_the_same_folder_can_be_used_again_in_the_same_process(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=5, callbacks=[SelfHealingCallback()])
    trainer.model.register_forward_hook(lambda *_: 1 / 0 if trainer.state.global_step == 2 else None)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    tiny_trainer(tmp_path, max_steps=5, callbacks=[SelfHealingCallback()]).train()
    assert postmortem(tmp_path)["exit_reason"] == "completed"
    assert [attempt["attempt"] for attempt in postmortem(tmp_path)["attempts"]] == [2], "it is another run"
