"""Hundreds of kill -9 while a ledger is being written: every complete line is read, at most one a process is torn."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from self_healing.core.ledger import read_ledger

pytestmark = pytest.mark.soak
KILLS = 200
WRITER = """
import os, sys
from self_healing.core.ledger import Ledger
ledger = Ledger(sys.argv[1], environ={})
print("ready", flush=True)
step = 0
while True:
    step += 1
    ledger.append("signal", "metrics", step=step, time_s=float(step), body={"values": {"loss": 1.0 / step}})
    if step % 50 == 0:
        ledger.append("incident", "loss-spike", step=step, time_s=float(step), body={"event": "opened"})
        ledger.flush(1.0)
"""


def test_nothing_complete_is_ever_lost(tmp_path):
    dice = random.Random(1)
    synced = 0
    for kill in range(KILLS):
        attempt = kill % 10 + 1  # a new run after every tenth kill, or reading would take longer than writing
        run_dir = tmp_path / str(kill // 10)
        if attempt == 1:
            synced = 0
        with subprocess.Popen([sys.executable, "-c", WRITER, str(run_dir)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(dice.uniform(0.0, 0.05))
            writer.send_signal(signal.SIGKILL)
        reading = read_ledger(run_dir / "healing" / "ledger.jsonl")
        assert reading.out_of_order == 0
        assert reading.torn <= attempt
        assert len(reading.entries) >= synced
        synced = len(reading.entries)
