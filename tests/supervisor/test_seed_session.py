"""A whole session, step for step: a Hydra script whose loss becomes NaN at 45 %, a lower rate, success, a clean workspace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import pytest

from .conftest import MARK, SOURCE, Heal
from .wandb_loopback import wandb_service

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")

SCRIPT = """\
import sys, time
import hydra, wandb

@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(config):
    run = wandb.init(config=dict(config.training))
    steps, rate = 200, config.training.learning_rate
    print(f"learning rate {rate:.3e}, constant product {config.schedule.constant_product}", flush=True)
    for step in range(steps):
        is_lost = rate > 1.5e-4 and step >= 0.45 * steps
        loss = float("nan") if is_lost else 1 / (1 + step)
        run.log({"loss": loss})
        sys.stderr.write(f"\\rTraining GNN: {100 * step // steps:3d}%|####      | {step}/{steps} [00:01<00:02,  9.80it/s, Loss={loss:.4f}, Accuracy=0.8456]")
        sys.stderr.flush()
        time.sleep(0.05 if is_lost else 0.002)
    run.finish()

main()
"""
CONFIG = """\
# The user's own comment.
training:
  learning_rate: 2e-4  # tuned
  meta_batch_size: 32
schedule:
  constant_product: 500
"""


def test_the_session_of_the_seed(tmp_path):
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "config.yaml"
    config.write_text(CONFIG)
    (tmp_path / "train.py").write_text(SCRIPT)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    mark = f"seed-{time.time_ns()}"
    with wandb_service() as service:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        environ |= {
            "PYTHONPATH": str(SOURCE),
            MARK: mark,
            "WANDB_PROJECT": "project",
            "WANDB_ERROR_REPORTING": "false",
            **service.environ(),
        }
        environ |= {"HOME": str(tmp_path / "home"), "WANDB_CACHE_DIR": str(tmp_path / "cache")}
        process = subprocess.Popen(
            [sys.executable, "-m", "self_healing", "run", "--max-retries", "3", "--grace", "5", "--run-dir", "run"],
            cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=let_runs_crash, args=(service, process), daemon=True).start()
        out, err = process.communicate(timeout=120)
    log = (tmp_path / "run" / "heal.log").read_text()
    assert process.returncode == 0, err
    assert out.splitlines() == [
        "learning rate 2.000e-04, constant product 500",
        "learning rate 1.333e-04, constant product 500",
    ]
    for line in (
        "attempt 1 of at most 4", "Using config: configs/config.yaml", "Detected wandb run ID",
        "learning_rate: 2.00e-04 -> 1.33e-04", "attempt 2 of at most 4", "config_retry_1_", "attempt 2 has finished",
        "Deleted failed wandb run: ",
    ):  # fmt: skip
        assert line in log, log
    ended_at = re.search(r"the loss is NaN at step (\d+)", log)
    assert ended_at is not None, log
    assert 90 <= int(ended_at[1]) < 120, "at 45 % of 200, and not left to go on"
    assert Heal(tmp_path, mark).survivors(10.0) == []
    assert (len(service.deleted), len(service.runs)) == (1, 1)
    assert config.read_text() == CONFIG
    after = {
        path.name
        for path in tmp_path.rglob("*")
        if not {"run", "wandb", "outputs", "home", "cache"} & set(path.relative_to(tmp_path).parts)
    }
    assert sorted(after) == before


def let_runs_crash(service, process):
    """Do what the service does: a run that no longer says anything has crashed, here after two seconds."""
    began = {}
    while process.poll() is None:
        for key, run in list(service.runs.items()):
            first = began.setdefault(key, time.monotonic())
            if (
                run["state"] == "running"
                and len(began) > 1
                and key == next(iter(began))
                and time.monotonic() - first > 2
            ):
                run["state"] = "crashed"
        time.sleep(0.05)
