"""A tracker that is down does not end the training; a bug in a user's callback does."""

from __future__ import annotations

import errno
import json
import socket
import sys
import urllib.error
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.data.network import is_network_error
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.faults.nan_in_eval import NanInEval
from self_healing.drills.faults.tracker_down import TrackerDown
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch


def entries(folder):
    return read_ledger(folder / "healing" / "ledger.jsonl").entries


def notes(folder, *names):
    return [(e.step, e.name, e.body["text"]) for e in entries(folder) if e.kind == "note" and e.name in names]


ABOUT_TRACKERS = ("tracker-down", "tracker-back", "tracker-losses")


def reporter(**events):
    """Return a callback that does these things at these events."""
    from transformers import TrainerCallback

    def method(do):
        return lambda self, args, state, control, **kwargs: do(state)

    return type("Reporter", (TrainerCallback,), {name: method(do) for name, do in events.items()})()


def fail(error):
    def do(state):
        raise error

    return do


def test_a_tracker_that_stays_down_is_said_once_and_its_losses_at_the_end(tmp_path):
    trainer = tiny_trainer(tmp_path)
    TrackerDown(at_step=30).plant(trainer)
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 60
    (down, losses) = notes(tmp_path, *ABOUT_TRACKERS)
    assert down[:2] == (30, "tracker-down")
    assert "TrackerCallback.on_log failed with ConnectionRefusedError" in down[2]
    assert losses == (60, "tracker-losses", "TrackerCallback has lost 5 reports in all")  # 30, 40, 50, 60 and the last
    assert [e for e in entries(tmp_path) if e.kind == "incident" and e.name != "throughput-drop"] == []


def test_a_tracker_that_comes_back_is_used_again(tmp_path):
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    reported = []

    def report(state):
        socket.create_connection(server.getsockname(), timeout=5.0).close()
        reported.append(state.global_step)

    opens = reporter(on_step_begin=lambda state: server.listen() if state.global_step == 20 else None)
    trainer = tiny_trainer(tmp_path, max_steps=40, callbacks=[opens, reporter(on_log=report)])
    SelfHealingTrainer(trainer).train()
    server.close()
    assert reported == [30, 40, 40]
    assert [note[:2] for note in notes(tmp_path, *ABOUT_TRACKERS)] == [(10, "tracker-down"), (30, "tracker-back")]
    assert notes(tmp_path, "tracker-back")[0][2].endswith("2 reports were lost")


def chained(error, cause):
    error.__cause__ = cause
    return error


def in_handling(error, earlier):
    error.__context__ = earlier
    return error


@pytest.mark.parametrize(
    ("error", "is_survived"),
    [
        (BrokenPipeError("the terminal is gone"), True),
        (TimeoutError("no answer"), True),
        (urllib.error.URLError("Name or service not known"), True),
        (chained(RuntimeError("could not report"), ConnectionResetError("by peer")), True),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), True),
        (KeyError("loss"), False),
        (in_handling(KeyError("while a lost connection was handled"), ConnectionError("lost")), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_only_what_a_network_raises_is_survived_in_a_callback_of_the_user(error, is_survived, tmp_path):
    assert is_network_error(error) is is_survived
    trainer = tiny_trainer(tmp_path, max_steps=3, logging_steps=1, callbacks=[reporter(on_log=fail(error))])
    if is_survived:
        SelfHealingTrainer(trainer).train()
        assert trainer.state.global_step == 3
        return
    with pytest.raises(type(error)) as caught:
        SelfHealingTrainer(trainer).train()
    assert caught.value is error, "as in a stock Trainer"
    assert notes(tmp_path, *ABOUT_TRACKERS) == []


def test_the_errors_of_the_hub_s_network_library_count_too():
    import httpx2

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(httpx2.ConnectError) as caught:
            httpx2.get(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert is_network_error(caught.value)


def azure_callback(monkeypatch, run):
    """Return a callback of transformers' own integrations, whose package is there in name only."""
    for name in ("azureml", "azureml.core", "azureml.core.run"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.Run = None
        monkeypatch.setitem(sys.modules, name, module)
    from transformers.integrations import AzureMLCallback

    return AzureMLCallback(azureml_run=run)


class BrokenRun:
    def log(self, *args, **kwargs):
        raise ValueError("the service answered with something else")


def test_whatever_an_integration_of_transformers_raises_in_mid_run_is_survived(tmp_path, monkeypatch):
    callback = azure_callback(monkeypatch, BrokenRun())
    trainer = tiny_trainer(tmp_path, max_steps=3, logging_steps=1, callbacks=[callback])
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 3
    assert [note[:2] for note in notes(tmp_path, *ABOUT_TRACKERS)] == [(1, "tracker-down"), (3, "tracker-losses")]
    with pytest.raises(ValueError, match="something else"):
        trainer.train()  # outside the guard the callback is as it was


def test_a_tracker_that_is_set_up_wrongly_is_said_before_anything_is_lost(tmp_path):
    wrong = reporter(on_train_begin=fail(ValueError("no key for the tracker")))
    type(wrong).__module__ = "transformers.integrations.some_tracker"
    trainer = tiny_trainer(tmp_path, max_steps=3, callbacks=[wrong])
    with pytest.raises(ValueError, match="no key for the tracker"):
        SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 0


def test_the_fence_is_there_only_where_it_may_act_and_only_while_training(tmp_path):
    watcher = reporter(on_log=fail(ConnectionError("down")), on_step_end=lambda state: None)
    with pytest.raises((ConnectionError, UnrecoverableError)):
        SelfHealingTrainer(
            tiny_trainer(tmp_path / "observe", max_steps=3, logging_steps=1, callbacks=[watcher]),
            HealingConfig(mode="observe"),
        ).train()
    trainer = tiny_trainer(tmp_path / "heal", max_steps=3, logging_steps=1, callbacks=[watcher])
    before = [dict(vars(callback)) for callback in trainer.callback_handler.callbacks]
    SelfHealingTrainer(trainer).train()
    assert vars(watcher) == {}
    assert [sorted(vars(callback)) for callback in trainer.callback_handler.callbacks] == list(map(sorted, before))


def test_a_nan_in_evaluation_is_told_and_not_blamed_on_the_training(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30, **NanInEval.needs)
    NanInEval(at_step=20).plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert [json.dumps(e["eval_loss"]) == "NaN" for e in trainer.state.log_history if "eval_loss" in e] == [
        False, True, False,
    ]  # fmt: skip
    assert output.metrics["healing/recovery_attempts"] == 0
    (incident,) = [e for e in entries(tmp_path) if e.kind == "incident" and e.name == "eval-not-finite"]
    assert incident.step == 20
    assert incident.body["because"].startswith("evaluation loss is nan while the training loss is 3.")
    (diagnosis,) = [e for e in entries(tmp_path) if e.kind == "diagnosis" and e.name == "eval-not-finite"]
    told = {h["name"]: h["weight"] for h in diagnosis.body["hypotheses"]}
    assert told, "a menu"
    assert max(told.values()) < 0.5, "nothing was examined, so nothing is claimed"
    assert "found-by-probe" not in told
