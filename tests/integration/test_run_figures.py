"""Figures and alerts of a guarded training, as any tracker and any webhook gets them; in this process."""

from __future__ import annotations

import json
import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.faults.learning_rate_too_high import LearningRateTooHigh
from self_healing.drills.faults.nan_loss import NanLoss
from self_healing.drills.faults.oom_above_two_rows import OomAboveTwoRows
from self_healing.drills.tiny_training import tiny_trainer

from ..unit.loopback_servers import answering, hanging, refusing
from .reported_training import fingerprint

pytestmark = pytest.mark.torch

SECRET = "/services/T0SECRET99/averylongtokenthatnobodymaysee"


class Rows:
    """Stands for the client of a tracker that no family knows: it keeps what it is told."""

    def __init__(self):
        self.values = {}

    def log(self, name, value, **kwargs):
        self.values.setdefault(name, []).append(value)


@pytest.fixture
def tracked(monkeypatch):
    """Return a callback of transformers' own integrations, and what it is told; the package is there in name only."""
    for name in ("azureml", "azureml.core", "azureml.core.run"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.Run = None
        monkeypatch.setitem(sys.modules, name, module)
    from transformers.integrations import AzureMLCallback

    rows = Rows()
    return AzureMLCallback(azureml_run=rows), rows.values


def seen_by_user():
    """Return a callback of a user's, and the names it was given."""
    from transformers import TrainerCallback

    names = []

    class Mine(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            names.extend(logs)

    return Mine(), names


def test_a_healthy_run_logs_what_it_would_log_and_its_trackers_get_the_figures_beside_it(tmp_path, tracked):
    stock = tiny_trainer(tmp_path / "stock", eval_strategy="steps", eval_steps=30)
    stock.train()
    callback, values = tracked
    mine, names = seen_by_user()
    trainer = tiny_trainer(tmp_path / "guarded", eval_strategy="steps", eval_steps=30, callbacks=[callback, mine])
    SelfHealingTrainer(trainer).train()
    assert fingerprint(trainer.model) == fingerprint(stock.model)

    def logged(each):
        return [
            {k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k}
            for row in each.state.log_history
        ]

    assert logged(trainer) == logged(stock)
    assert not any("/" in name for name in names), "a callback of the user's gets what it would get"
    assert values["healing/nan_count"] == [0] * 9
    assert values["healing/lr_scale"] == [1.0] * 9
    assert len(values["healing/eval_gap"]) == 6, "from the first evaluation on"
    gap = values["eval_loss"][-1] - values["loss"][-1]  # of the newest step there, of the last ten here
    assert values["healing/eval_gap"][-1] == pytest.approx(gap, abs=0.3)
    assert 0.5 < values["healing/loss_spike_ratio"][-1] < 1.5


def test_pieces_of_micro_batches_and_cuts_of_the_rate_are_counted(tmp_path, tracked):
    callback, values = tracked
    trainer = tiny_trainer(tmp_path, max_steps=20, logging_steps=5, callbacks=[callback], **OomAboveTwoRows.needs)
    OomAboveTwoRows(at_step=7).plant(trainer)
    SelfHealingTrainer(trainer).train()
    splits = values["healing/oom_splits"]
    assert splits[0] == 0
    assert 0 < splits[1] < splits[-1], "what works is used from then on"


def test_a_cut_of_the_rate_is_told_as_its_scale(tmp_path, tracked):
    callback, values = tracked
    trainer = tiny_trainer(tmp_path, callbacks=[callback], logging_steps=2, **LearningRateTooHigh.needs)
    LearningRateTooHigh(at_step=20).plant(trainer)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=5)).train()
    assert values["healing/lr_scale"][0] == 1.0
    assert min(values["healing/lr_scale"]) < 1.0
    assert values["healing/steps_lost"][-1] > 0
    assert values["healing/trained_steps"] == sorted(values["healing/trained_steps"]), "it never goes back"


def test_webhooks_hear_of_every_decision_and_what_lets_one_in_is_nowhere_to_be_seen(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "self_healing")
    clean = tiny_trainer(tmp_path / "clean")
    clean.train()
    trainer = tiny_trainer(tmp_path / "run")
    NanLoss(at_step=17).plant(trainer)
    with answering() as (good, posted), answering(500) as (broken, _), hanging() as stuck, refusing() as closed:
        urls = [address + SECRET for address in (good, broken, stuck, closed)]
        config = HealingConfig(alert_urls=urls)
        SelfHealingTrainer(trainer, config).train()
        assert fingerprint(trainer.model) == fingerprint(clean.model), "a transient NaN leaves no trace, nor do alerts"
    levels = {body["title"]: body["level"] for _, _, body in posted}
    assert levels["step-not-finite: skip-step"] == "WARN"
    assert levels["run ended: completed"] == "INFO"
    assert {body["run"] for _, _, body in posted} == {"run"}
    written = [path.read_text() for path in (tmp_path / "run").rglob("*.json*")]
    assert len(written) == 3, "ledger, postmortem and heartbeat"
    for text in (*written, caplog.text, repr(config)):
        assert "SECRET99" not in text
        assert "averylongtoken" not in text
    first = read_ledger(tmp_path / "run" / "healing" / "ledger.jsonl").entries[0]
    assert first.body["config"]["alert_urls"] == [f"{address}/***" for address in (good, broken, stuck, closed)]
    for address in (broken, stuck, closed):
        assert f"alerts to {address}/*** were lost" in caplog.text


def test_an_exception_that_holds_such_an_address_is_masked_in_the_ledger_and_the_postmortem(tmp_path):
    with refusing() as address:
        url = address + SECRET
        trainer = tiny_trainer(tmp_path, max_steps=10)

        def fails(*_args):
            raise RuntimeError(f"cannot reach {url}, nor T0SECRET99")

        trainer.model.register_forward_pre_hook(fails)
        with pytest.raises(RuntimeError):
            SelfHealingTrainer(trainer, HealingConfig(alert_urls=[url])).train()
    for path in (tmp_path / "postmortem.json", tmp_path / "healing" / "ledger.jsonl"):
        text = path.read_text()
        assert "cannot reach ***, nor ***" in text
        assert "SECRET99" not in text
        assert "averylongtoken" not in text


def test_a_run_that_is_only_watched_tells_of_what_it_sees(tmp_path, tracked):
    callback, values = tracked
    trainer = tiny_trainer(tmp_path, callbacks=[callback], max_steps=30)
    NanLoss(at_step=17).plant(trainer)
    with answering() as (address, posted):
        config = HealingConfig(mode="observe", alert_urls=[address])
        SelfHealingTrainer(trainer, config).train()
    titles = [body["title"] for _, _, body in posted]
    assert any(title.startswith("loss-not-finite") for title in titles)
    assert values["healing/nan_count"] == [0, 3, 13, 13], "nothing was held back, so that it stays"


def test_the_postmortem_of_a_run_without_pages_has_none(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=3)
    SelfHealingTrainer(trainer).train()
    assert json.loads((tmp_path / "postmortem.json").read_text())["tracker_pages"] == {}
