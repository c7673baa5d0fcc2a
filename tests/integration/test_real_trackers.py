"""Real trackers: what a run stores with them is read back; and one that dies or hangs is no concern of the training."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.faults.weight_nan import WeightNan
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.tiny_trl import TINY

from .reported_training import fingerprint

pytestmark = pytest.mark.torch
pytest.importorskip("trackio")
pytest.importorskip("wandb")
pytest.importorskip("tensorboard")

NAMES = {
    "healing/recovery_attempts", "healing/nan_count", "healing/loss_spike_ratio", "healing/eval_gap",
    "healing/skipped_steps", "healing/lr_scale", "healing/oom_splits", "healing/goodput", "healing/steps_lost",
    "healing/seconds_lost", "memory/max_alloc", "memory/max_reserved", "zclip/raw_grad_norm",
    "zclip/clipped_grad_norm", "zclip/z_score", "zclip/total_clips",
}  # fmt: skip
ALL = ["trackio", "wandb", "tensorboard"]
LOGGED = [10, 20, 30, 30, 40, 50, 60, 60, 60]
"""The steps of the rows: every ten steps, two evaluations, and the end."""


def train(folder, **wanted):
    """Train in another process and return what it says."""
    folder.mkdir(exist_ok=True)
    script = Path(__file__).with_name("reported_training.py")
    wanted = {"folder": str(folder), "report_to": ALL, **wanted}
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(wanted)], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads((folder / "result.json").read_text()) | {"stderr": done.stderr}


def in_trackio(folder):
    """Return the rows and the alerts in the local database."""
    with sqlite3.connect(folder / "trackio" / "healing.db") as database:
        rows = [json.loads(row) for (row,) in database.execute("select metrics from metrics order by step")]
        return rows, database.execute("select title, text, level from alerts order by id").fetchall()


def in_wandb(folder):
    """Return the rows and the alerts in the file of an offline run: a LevelDB log of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    raw, place, whole, rows, alerts = file.read_bytes(), 7, b"", [], []
    while place + 7 <= len(raw):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", raw[place : place + 7])
        whole += raw[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
            elif record.WhichOneof("record_type") == "alert":
                alerts.append((record.alert.title, record.alert.text, record.alert.level.lower()))
    return rows, alerts


def in_tensorboard(folder):
    """Return the scalars in the event files: name to steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Return the folder and the result of a run with a transient NaN and one that destroys the weights."""
    folder = tmp_path_factory.mktemp("troubled")
    arguments = {"eval_strategy": "steps", "eval_steps": 30, "trackio_static_space_id": False}
    faults = {"nan-loss": 17, "weight-nan": 33}
    healing = {"snapshot_every_steps": 5}
    return folder, train(folder, arguments=arguments, faults=faults, healing=healing, space="me/board")


def rows_of(tracker, folder):
    return (in_trackio if tracker == "trackio" else in_wandb)(folder)[0]


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_the_figures_are_in_the_rows_of_the_trainer_under_exactly_their_names(troubled, tracker):
    rows = rows_of(tracker, troubled[0])
    assert [row["train/global_step"] for row in rows] == LOGGED
    assert [
        name for row in rows for name in row if name.startswith(("train/healing", "train/memory", "train/zclip"))
    ] == []
    assert [NAMES - row.keys() for row in rows[:3]] == [{"healing/eval_gap"}] * 3, "there was no evaluation yet"
    assert [NAMES - row.keys() for row in rows[3:]] == [set()] * 6
    assert all("train/loss" in row and "zclip/raw_grad_norm" in row for row in rows if "train/grad_norm" in row)


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_the_figures_say_what_happened(troubled, tracker):
    _, result = troubled
    rows = rows_of(tracker, troubled[0])
    assert [row["healing/nan_count"] for row in rows] == [0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert [row["healing/recovery_attempts"] for row in rows] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    lost = result["metrics"]["healing/steps_lost"]
    assert lost == 4
    assert [row["healing/steps_lost"] for row in rows] == [0] * 4 + [lost] * 5
    assert all(row["healing/seconds_lost"] > 0 for row in rows[4:])
    assert all(0 < row["healing/goodput"] < 1 for row in rows)
    assert all(row["memory/max_alloc"] > 0 for row in rows)
    for row in rows:
        if "train/grad_norm" in row:
            assert row["zclip/raw_grad_norm"] == row["train/grad_norm"]
            assert row["zclip/clipped_grad_norm"] <= 1.0 < row["zclip/raw_grad_norm"]
        if "eval/loss" in row and row["train/global_step"] == 60:
            # The training loss of the newest step is that of the ten last ones, about.
            assert abs(row["healing/eval_gap"]) < 0.5


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_after_a_return_there_is_an_axis_that_never_goes_back(troubled, tracker):
    rows = rows_of(tracker, troubled[0])
    assert [row["healing/trained_steps"] for row in rows] == [10, 20, 30, 30, 44, 54, 64, 64, 64]
    assert [row["healing/rollbacks"] for row in rows] == [0] * 4 + [1] * 5


def test_tensorboard_has_the_figures_at_the_steps_of_the_trainer(troubled):
    scalars = in_tensorboard(troubled[0])
    assert scalars.keys() >= NAMES
    assert not any(name.startswith(("train/healing", "train/zclip", "train/memory")) for name in scalars)
    assert [step for step, _ in scalars["healing/nan_count"]] == LOGGED
    assert [value for _, value in scalars["healing/nan_count"]] == [0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert [step for step, _ in scalars["healing/eval_gap"]] == LOGGED[3:]
    assert [step for step, _ in scalars["train/loss"]] == [10, 20, 30, 40, 50, 60]


def test_tensorboard_shows_what_counts_where_steps_were_reported_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    trainer = tiny_trainer(
        tmp_path, max_steps=20, logging_steps=1, report_to=["tensorboard"], eval_strategy="steps", eval_steps=5
    )
    WeightNan(at_step=17).plant(trainer)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=8)).train()
    scalars = in_tensorboard(tmp_path)
    assert max(value for _, value in scalars["healing/rollbacks"]) == 1
    assert [step for step, _ in scalars["healing/rollbacks"] if step > 8] != []
    assert {value for step, value in scalars["healing/skipped_steps"]} == {0}, "it was trained after the return"
    counted = [(row["step"], row["loss"]) for row in trainer.state.log_history if "loss" in row]
    assert scalars["train/loss"] == [(step, pytest.approx(loss)) for step, loss in counted]
    assert [step for step, _ in scalars["eval/loss"]] == [5, 10, 15, 20]


@pytest.mark.parametrize("stored", [in_trackio, in_wandb])
def test_every_decision_is_an_alert_with_its_level_its_step_and_its_references(troubled, stored):
    _, alerts = stored(troubled[0])
    by_title = {title: (text, level) for title, text, level in alerts}
    text, level = by_title["weights-not-finite: roll-back"]
    assert level == "error"
    assert text.startswith("Seen at step 34: 1 tensors of weights or optimizer state are not finite\nDone: roll-back: ")
    assert "\nLikely: Weights or optimizer moments hold numbers" in text
    assert "\nReferences: https://" in text
    assert by_title["weights-not-finite: recovered"][1] == "info"
    at_once = [(text, level) for title, text, level in alerts if title == "step-not-finite: skip-step"]
    assert {level for _, level in at_once} == {"warn"}
    # One alert with a count, or two where this machine took longer than a second from the one to the other.
    assert len(at_once) == 2 or "2 times, steps 17 to 33" in at_once[0][0]


def test_the_address_of_a_page_is_in_the_log_the_alerts_and_the_postmortem(troubled):
    folder, result = troubled
    page = "https://huggingface.co/spaces/me/board"
    assert f"this run is to be seen at {page}" in result["stderr"]
    assert all(text.endswith(f"See {page}") for stored in (in_trackio, in_wandb) for _, text, _ in stored(folder)[1])
    assert json.loads((folder / "postmortem.json").read_text())["tracker_pages"] == {"trackio": page}


def test_the_trainers_own_log_knows_nothing_of_figures_that_are_for_trackers(troubled):
    names = {name for row in troubled[1]["log_history"] for name in row}
    assert not any(name.startswith(("memory/", "zclip/")) for name in names)
    assert "healing/nan_count" not in names


def entries(folder, *names):
    return [e for e in read_ledger(folder / "healing" / "ledger.jsonl").entries if e.kind == "note" and e.name in names]


def test_a_tracker_that_is_killed_leaves_training_and_the_other_trackers_alone(tmp_path):
    clean = tiny_trainer(tmp_path / "clean")
    clean.train()
    struck = train(tmp_path / "struck", strike="kill")
    assert struck["steps"] == 60
    assert struck["weights"] == fingerprint(clean.model), "as without any tracker, and without a guard"
    (down,) = entries(tmp_path / "struck", "tracker-down")
    assert down.body["text"].startswith("WandbCallback.on_log failed with ConnectionResetError")
    (losses,) = entries(tmp_path / "struck", "tracker-losses")
    assert losses.body["text"] == "WandbCallback has lost 6 reports in all"
    scalars = in_tensorboard(tmp_path / "struck")
    assert [step for step, _ in scalars["healing/goodput"]] == [10, 20, 30, 40, 50, 60, 60]


@pytest.mark.soak
def test_a_tracker_that_is_killed_does_not_end_a_run_of_grpo_which_reports_in_the_middle_of_its_steps(tmp_path):
    arguments = {"max_steps": 8, "log_completions": True}
    clean = TINY["grpo"](tmp_path / "clean", **arguments)
    clean.train()
    struck = train(tmp_path / "struck", kind="grpo", strike="kill", strike_at=4, arguments=arguments)
    assert struck["steps"] == 8
    assert struck["weights"] == fingerprint(clean.model)
    (down,) = entries(tmp_path / "struck", "tracker-down")
    assert down.body["text"].startswith("WandbCallback.on_log failed with ConnectionResetError")
    rows, _ = in_wandb(tmp_path / "struck")
    taken = [row for row in rows if "profiling/Time taken: GRPOTrainer.transformers.generate" in row]
    assert taken, "what TRL reports itself is reported as ever, until the tracker is gone"


def test_a_tracker_that_hangs_is_waited_for_once_and_then_no_more(tmp_path):
    # Without a thread of its own this run would never end: the pipe to the service is full, and nobody reads.
    stuck = train(tmp_path, report_to=["wandb", "tensorboard"], strike="stop")
    assert stuck["steps"] == 60
    (slow,) = entries(tmp_path, "tracker-slow")
    assert slow.body["text"].startswith("WandbCallback.on_log has not returned after 1 s; training goes on")
    assert [step for step, _ in in_tensorboard(tmp_path)["train/loss"]] == [10, 20, 30, 40, 50, 60]
    (losses,) = entries(tmp_path, "tracker-losses")
    assert losses.body["text"].startswith("WandbCallback has lost "), "all that waited its turn until the end"
