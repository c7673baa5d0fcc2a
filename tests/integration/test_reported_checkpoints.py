"""What the core keeps of checkpoints: the past of each that can be returned to, and of none that is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.adapters.trainer.trainer_session import TrainerSession
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_trainer

from .test_sick_checkpoints import at

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture
def kept(monkeypatch):
    """The names of the checkpoints whose past the core has, as it is at the end of a training."""
    found, ended = set(), TrainerSession.ended

    def look(session, *args):
        healer = session.desk.healer
        session.desk.opened.ledger.flush()
        taken = [entry for entry in read_ledger(session.desk.opened.ledger.path).entries if entry.kind == "signal"]
        keys = {entry.body["key"] for entry in taken if entry.name == "snapshot-taken"}
        found.update(Path(key).name for key in keys if healer.past_of(key) is not None and "checkpoint-" in key)
        ended(session, *args)

    monkeypatch.setattr(TrainerSession, "ended", look)
    return found


def train(folder, **settings):
    trainer = tiny_trainer(folder, max_steps=30, save_strategy="steps", save_steps=3, **settings)
    # Its gradient has a spike at step 22: while that is watched one checkpoint more is kept.
    SelfHealingTrainer(trainer, HealingConfig(ignore=("gradient-explosion",))).train()


def test_the_past_of_a_checkpoint_that_was_rotated_away_is_kept_no_longer(tmp_path, kept):
    train(tmp_path, save_total_limit=2)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-27", "checkpoint-30"]
    assert kept == {"checkpoint-27", "checkpoint-30"}


def test_the_past_of_each_checkpoint_that_is_there_is_kept_and_of_one_that_somebody_deletes_it_is_not(tmp_path, kept):
    delete = at("on_step_end", 20, lambda _model: shutil.rmtree(tmp_path / "checkpoint-9"))
    train(tmp_path, callbacks=[delete])
    assert kept == {f"checkpoint-{step}" for step in range(3, 31, 3) if step != 9}
