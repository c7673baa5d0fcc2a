"""A loop of one's own that is killed under `heal run` goes on by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

OWN_LOOP = Path(__file__).with_name("own_loop.py")


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_loop_that_is_killed_is_started_again_and_goes_on(heal, tmp_path):
    alone = tmp_path / "alone"
    subprocess.run([sys.executable, str(OWN_LOOP), str(alone), "-1"], check=True, capture_output=True)
    process = heal.start(
        "--grace", "2", "--backoff", "0", command=[sys.executable, str(OWN_LOOP), str(heal.run_dir), "14"]
    )
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert (heal.run_dir / "weights.txt").read_text() == (alone / "weights.txt").read_text()
    lines = (heal.run_dir / "healing" / "ledger.jsonl").read_text().splitlines()
    (told,) = [entry["body"]["text"] for entry in map(json.loads, lines) if entry["name"] == "resuming"]
    assert told.startswith("training goes on after step 12 from shared memory")
