"""`heal demo` as users call it, in a process of its own: the healed run is as good as the clean one, the stock run dies."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
HEAL = [sys.executable, "-m", "self_healing", "demo", "--quick"]
HIT = {"step-not-finite", "network-error", "out-of-memory", "loss-spike", "bad-record"}


def on_a_terminal(columns, **environ):
    """Run the demo on a terminal of that width; return its exit code and everything that was written."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(HEAL[0], HEAL, {**os.environ, "TERM": "xterm-256color", **environ})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    written = b""
    try:
        while chunk := os.read(terminal, 65536):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written.decode()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The data of one demo and the folder that was asked for."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    done = subprocess.run([*HEAL, "--json", "--output", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout), folder


def test_the_data_have_the_documented_shape(shown):
    data, folder = shown
    assert set(data) == {"v", "healed", "planned_updates", "eval_loss_excess", "extra_forward_passes", "faults", "events",
                         "runs", "files"}  # fmt: skip
    assert data["v"] == 1
    assert all(set(fault) == {"name", "summary"} for fault in data["faults"])
    assert all(set(event) == {"step", "name", "happened", "done"} for event in data["events"])
    keys = {"name", "updates", "eval_loss", "weights_broken_at", "ended_by", "forward_passes", "seconds", "losses"}
    assert all(set(run) == keys for run in data["runs"])
    assert Path(data["files"]["folder"]) == folder
    assert json.loads(Path(data["files"]["postmortem"]).read_text())["exit_reason"] == "completed"


def test_the_healed_run_is_as_good_as_the_clean_one_and_the_stock_run_is_lost(shown):
    data, _ = shown
    clean, healed, stock = data["runs"]
    assert [run["name"] for run in data["runs"]] == ["clean", "healed", "stock"]
    assert data["healed"] is True
    assert clean["updates"] == healed["updates"] == data["planned_updates"] == 80
    assert (clean["ended_by"], healed["ended_by"]) == (None, None)
    assert healed["eval_loss"] <= 1.01 * clean["eval_loss"]
    assert healed["losses"][:8] == clean["losses"][:8], "the same seeds"
    assert clean["losses"][-1]["loss"] < 0.5 * clean["losses"][0]["loss"], "something is learned"
    assert (stock["weights_broken_at"], stock["eval_loss"]) == (9, "nan")
    assert stock["ended_by"] == "TimeoutError: timed out"
    assert stock["updates"] < 80
    assert clean["forward_passes"] == 80
    assert data["extra_forward_passes"] == healed["forward_passes"] - 80 > 0


def test_every_fault_has_hit_and_is_told_once(shown):
    data, _ = shown
    told = [event["name"] for event in data["events"]]
    assert set(told) >= HIT
    assert {name: told.count(name) for name in HIT} == dict.fromkeys(HIT, 1) | {"network-error": 2, "out-of-memory": 2}
    assert all(event["happened"] and event["done"] for event in data["events"])
    assert not {"loss-not-finite", "gradient-not-finite"} & set(told), "dealt with inside the step, which is told"
    steps = [event["step"] for event in data["events"]]
    assert steps == sorted(set(steps)), "what several rules see in one step is one event"


def test_its_ledger_can_be_replayed(shown):
    data, _ = shown
    words = [sys.executable, "-m", "self_healing", "replay", data["files"]["ledger"], "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["recording"]["exact"] is True


def test_it_fits_a_terminal_of_100_columns_with_bars_and_colours(tmp_path):
    code, written = on_a_terminal(100, TMPDIR=str(tmp_path))
    assert code == 0
    assert "\x1b[1;32mWith the healer: 80 of 80 updates" in written
    assert "\u2501" in written, "a progress bar"
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n").split("\n")
    shown = [line.rpartition("\r")[2] for line in lines if str(tmp_path) not in line]  # paths are as long as they are
    assert max(map(len, shown)) <= 100
    assert any(
        line.split() == ["updates", "applied", "80", "of", "80", "80", "of", "80", "13", "of", "80"] for line in shown
    )
    (folder,) = tmp_path.glob("heal-demo-*")
    assert f"{folder}/healed/postmortem.json" in written
    assert (folder / "healed" / "postmortem.json").is_file()


def test_it_is_plain_lines_without_colours_and_says_so_where_nothing_was_healed(tmp_path):
    code, written = on_a_terminal(100, TMPDIR=str(tmp_path), NO_COLOR="1", SELF_HEALING="off")
    assert code == 1
    assert "\x1b" not in written
    assert re.search(r"clean   no faults            step  80 of 80  loss \d\.\d{3}", written)
    assert "It was ended by TimeoutError: timed out." in " ".join(written.split())
    assert "postmortem.json" not in written, "there is none"
