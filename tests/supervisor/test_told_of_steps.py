"""What is said of a supervised command's steps: as much as it has told, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from self_healing.cli.main import main

LINE = {"no steps": "print('working', flush=True)", "steps": "print('step 7: loss 1.5', flush=True)"}


@pytest.fixture(params=list(LINE))
def job(request, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"{LINE[request.param]}\nraise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    )
    command = [sys.executable, "-m", "self_healing", "run", "--run-dir", str(tmp_path / "run"), "--backoff", "0"]
    subprocess.run(
        [*command, "--max-retries", "1", "--", sys.executable, str(script)],
        check=False,
        capture_output=True,
        timeout=90,
    )
    return request.param, str(tmp_path / "run")


def test_a_command_that_tells_no_steps_is_not_said_to_have_trained_or_lost_none(job, capsys):
    told, run_dir = job
    assert main(["report", run_dir, "--markdown"]) == 0
    markdown = " ".join(capsys.readouterr().out.split())
    assert main(["report", run_dir]) == 0
    page = open(capsys.readouterr().out.strip()).read()  # noqa: PTH123, SIM115
    assert main(["watch", run_dir, "--once"]) == 0
    screen = capsys.readouterr().out
    if told == "steps":
        assert "This run trained 7 steps" in markdown
        assert "at step 7" in markdown
        assert "step 7" in page
        assert "step 7" in screen
        return
    assert "told no steps" in markdown
    assert "| Steps | \\- the command told none |" in markdown
    assert "| Steps lost | \\- not known |" in markdown
    assert "trained 0" not in markdown
    assert "No step had to be trained again" not in markdown
    assert "at step" not in markdown
    assert "step not told" in page
    assert "step 0" not in page
    assert "no step told" in screen
    assert "step 0" not in screen
