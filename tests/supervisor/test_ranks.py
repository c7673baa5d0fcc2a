"""Two ranks under torchrun under `heal run`: the one that died is named, and the job comes to its end."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import Heal

RANKS = Path(__file__).with_name("ranks.py")
STEPS = 40


def kill_rank_one(heal, after_steps, number=1):
    """Start the job, kill its second rank after some steps, and return how it ended."""
    heal.run_dir.mkdir(parents=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(RANKS),
        "--output_dir", str(heal.run_dir), "--steps", str(STEPS),
    ]  # fmt: skip
    process = heal.start("--grace", "5", "--backoff", "0", command=command)
    output = heal.run_dir / "healing" / f"attempt-{number}" / "output.log"
    until = time.monotonic() + 90
    while time.monotonic() < until:
        if output.exists() and f"step {after_steps}:" in output.read_text(errors="replace"):
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(int((heal.run_dir / "pid-1").read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def expected():
    return {"step": STEPS, "total": float(sum(2 * step for step in range(1, STEPS + 1)))}


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_killed_rank_is_named_and_the_job_goes_on_from_its_checkpoint(heal):
    code, err = kill_rank_one(heal, after_steps=17)
    assert code == 0, err
    assert json.loads((heal.run_dir / "result.json").read_text()) == expected()
    assert heal.causes() == ["killed_unknown", ""]
    said = [line["body"]["says"] for line in heal.ledger() if line["name"] == "attempt-ended"]
    assert said[0].startswith("rank 1: killed by SIGKILL")
    assert "goes on from" in err
    assert "checkpoint-15.pt" in err


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_killed_at_ten_random_moments(tmp_path):
    draw = random.Random(7)
    for number in range(10):
        heal = Heal(tmp_path / str(number), f"ranks-{number}-{time.time_ns()}")
        heal.folder.mkdir()
        code, err = kill_rank_one(heal, after_steps=draw.randint(1, STEPS - 1))
        assert code == 0, err
        assert json.loads((heal.run_dir / "result.json").read_text()) == expected()
        said = [line["body"]["says"] for line in heal.ledger() if line["name"] == "attempt-ended"]
        assert said[0].startswith("rank 1: killed by SIGKILL"), said
        assert heal.survivors(5.0) == []
