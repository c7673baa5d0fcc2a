"""A process that is killed says nothing; the next start writes its postmortem."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from self_healing import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch

SCRIPT = """
import os, signal, sys, time
from self_healing import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
trainer = tiny_trainer(sys.argv[1], max_steps=30)
def kill(*_):
    time.sleep(0.2)  # lines reach the file a moment after they are written
    if trainer.state.global_step == 12:
        os.kill(os.getpid(), signal.SIGKILL)
trainer.model.register_forward_hook(kill)
SelfHealingTrainer(trainer).train()
"""


def test_the_next_start_writes_the_postmortem_of_a_killed_run(tmp_path):
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, env=environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "postmortem.json").exists()
    told = []
    trainer = tiny_trainer(tmp_path, max_steps=30)
    trainer.model.register_forward_hook(
        lambda *_: told.append(json.loads((tmp_path / "postmortem.json").read_text())) if not told else None
    )
    SelfHealingTrainer(trainer).train()
    assert (told[0]["exit_reason"], len(told[0]["attempts"])) == ("killed", 1)
    assert 1 <= told[0]["last_step"] <= 12
    after = json.loads((tmp_path / "postmortem.json").read_text())
    assert (after["exit_reason"], len(after["attempts"])) == ("completed", 2)
