"""A training that was killed goes on in the same run of each tracker; those that are not installed are passed over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import os, signal, sys, time, torch
torch.set_num_threads(1)
from transformers import TrainerCallback
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
folder, tracker, kill_at, resume = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])

def is_stored():
    from trackio.sqlite_storage import SQLiteStorage
    return SQLiteStorage.get_runs("huggingface")

class Kill(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        if state.global_step == kill_at:
            until = time.monotonic() + 60
            while tracker == "trackio" and not is_stored() and time.monotonic() < until:
                time.sleep(0.1)  # it stores what it is told by a thread of its own
            os.kill(os.getpid(), signal.SIGKILL)

trainer = tiny_trainer(
    folder, max_steps=12, report_to=[tracker], logging_steps=1, save_strategy="steps", save_steps=4, callbacks=[Kill()]
)
SelfHealingTrainer(trainer, HealingConfig(shared_memory=False)).train(resume_from_checkpoint=resume)
"""


class TensorBoard:
    name = "tensorboard"
    module = "tensorboard"

    def environ(self, folder):
        return {}

    def runs(self, folder):
        return [path.name for path in (folder / "out" / "runs").iterdir()]

    def steps(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (run,) = (folder / "out" / "runs").iterdir()
        events = EventAccumulator(str(run))
        events.Reload()
        return [event.step for event in events.Scalars("train/loss")]


class Wandb:
    name = "wandb"
    module = "wandb"

    def environ(self, folder):
        return {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}

    def runs(self, folder):
        return {path.name.rsplit("-", 1)[1] for path in (folder / "wandb").glob("offline-run-*")}


class MLflow:
    name = "mlflow"
    module = "mlflow"

    def environ(self, folder):
        return {"MLFLOW_TRACKING_URI": f"file://{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}

    def runs(self, folder):
        return [path.parent.name for path in (folder / "mlruns").glob("*/*/meta.yaml")]


class Trackio:
    name = "trackio"
    module = "trackio"

    def environ(self, folder):
        return {"TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"}

    def runs(self, folder):
        code = "import trackio.sqlite_storage as s; print(*s.SQLiteStorage.get_runs('huggingface'))"
        environ = {**os.environ, **self.environ(folder)}
        return subprocess.check_output([sys.executable, "-c", code], text=True, env=environ).split()


TRACKERS = [TensorBoard(), Wandb(), MLflow(), Trackio()]


@pytest.fixture(
    params=[
        pytest.param(tracker, marks=pytest.mark.soak if tracker.name != "wandb" else (), id=tracker.name)
        for tracker in TRACKERS
    ]
)
def tracker(request):
    pytest.importorskip(request.param.module)
    return request.param


def train(tracker, folder, kill_at=0, resume=None, **environ):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "out"), tracker.name, str(kill_at), repr(resume)],
        capture_output=True, text=True, check=False, timeout=150, cwd=folder,
        env={**os.environ, **tracker.environ(folder), **environ},
    )  # fmt: skip


def killed(tracker, folder, **environ):
    ended = train(tracker, folder, kill_at=7, **environ)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(tracker.runs(folder)) == 1


def gone_on(tracker, folder, resume=None, **environ):
    ended = train(tracker, folder, resume=resume, **environ)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_a_killed_training_goes_on_in_the_same_run(tracker, tmp_path):
    killed(tracker, tmp_path)
    gone_on(tracker, tmp_path)
    assert len(tracker.runs(tmp_path)) == 1
    if hasattr(tracker, "steps"):
        assert tracker.steps(tmp_path) == list(range(1, 13)), "what was seen of steps that are trained again is gone"


def test_a_training_that_starts_over_begins_another(tracker, tmp_path):
    killed(tracker, tmp_path)
    gone_on(tracker, tmp_path, resume=False)
    assert len(tracker.runs(tmp_path)) == 2


def notes(folder, name):
    lines = (folder / "out" / "healing" / "ledger.jsonl").read_text().splitlines()
    return [entry["body"]["text"] for entry in map(json.loads, lines) if entry["name"] == name]


def test_a_run_that_the_tracker_has_lost_costs_nothing(tmp_path):
    pytest.importorskip("mlflow")
    tracker = MLflow()
    killed(tracker, tmp_path)
    (run,) = (tmp_path / "mlruns").glob("*/*/meta.yaml")
    run.parent.rename(tmp_path / "elsewhere")
    gone_on(tracker, tmp_path)
    assert len(tracker.runs(tmp_path)) == 1
    (told,) = notes(tmp_path, "tracker-begins-anew")
    assert "MLflowCallback does not go on with the run" in told


def test_a_run_that_the_user_names_is_his(tmp_path):
    pytest.importorskip("wandb")
    tracker = Wandb()
    killed(tracker, tmp_path)
    gone_on(tracker, tmp_path, WANDB_RUN_ID="mine")
    assert "mine" in tracker.runs(tmp_path)
    assert len(tracker.runs(tmp_path)) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"v": 2}', '{"v": 1, "runs": []}', "\xff"])
def test_names_that_cannot_be_read_are_as_good_as_none(content, tmp_path):
    from self_healing.adapters.trainer.tracker_runs import _read

    (tmp_path / "trackers.json").write_bytes(content.encode("latin-1"))
    assert _read(tmp_path / "trackers.json") == {}
