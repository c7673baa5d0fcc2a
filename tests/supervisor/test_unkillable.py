"""A process that SIGKILL does not end is told of and not waited for; the kernel's part is played by a shim whose kill has no teeth."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from self_healing.supervisor.decide import Again, Stop, decide
from self_healing.supervisor.outcome import outcome_of
from self_healing.supervisor.process import child, shim
from self_healing.supervisor.running import Running, Start
from self_healing.supervisor.settings import RunSettings
from self_healing.supervisor.signals import SignalDesk

TOOTHLESS = """
import os, runpy, signal, sys
real = os.kill
def kill(pid, number):
    if number != signal.SIGKILL:
        real(pid, number)
    elif {denied}:
        raise PermissionError(1, "not yours")
os.kill = kill
sys.argv[0] = {shim!r}
names = runpy.run_path({shim!r})
names["main"].__globals__["UNKILLABLE_S"] = 0.2
names["main"]()
"""
LEAVES_ONE = ["sh", "-c", "trap '' TERM; setsid sleep 600 >/dev/null 2>&1 & exit 3"]


@pytest.mark.parametrize("denied", [False, True], ids=["waits in the kernel", "is another user's"])
def test_what_cannot_be_killed_is_told_of_and_the_attempt_ends(tmp_path, monkeypatch, denied):
    toothless = tmp_path / "shim.py"
    toothless.write_text(TOOTHLESS.format(denied=denied, shim=shim.__file__))
    monkeypatch.setattr(shim, "__file__", str(toothless))
    said: list[str] = []
    settings = RunSettings(grace=0)
    start = Start(
        number=1, argv=LEAVES_ONE, environ=os.environ, cwd=Path.cwd(), folder=tmp_path / "attempt-1", tell=said.append
    )
    with SignalDesk() as desk:
        attempt = Running(start, settings, desk).run()
    (told,) = said
    os.kill(int(told.split()[1]), signal.SIGKILL)
    assert attempt.status == 3
    decision = decide([outcome_of(attempt)], settings)
    if denied:
        assert "belongs to another user" in told
        assert isinstance(decision, Stop), "two trainings would write to one folder"
        assert "would run beside it" in decision.because
    else:
        assert "in state S" in told
        assert isinstance(decision, Again)


def test_without_the_process_between_it_is_not_waited_for_either(monkeypatch):
    monkeypatch.setattr(shim, "UNKILLABLE_S", 0.1)
    monkeypatch.setattr(child.os, "kill", lambda _pid, _number: None)
    waiting = child.subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        assert child.Left(waiting.pid, "S") in child._kill_what_is_left()[1]
    finally:
        monkeypatch.undo()
        waiting.kill()
        waiting.wait()
