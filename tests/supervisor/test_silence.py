"""How long a command may be silent: learned, and never shorter than what it has shown to need."""

from __future__ import annotations

import os
import sys
import time

from self_healing.supervisor import running
from self_healing.supervisor.outcome import EndedBy
from self_healing.supervisor.running import Running, Start
from self_healing.supervisor.settings import RunSettings
from self_healing.supervisor.signals import SignalDesk
from self_healing.supervisor.watch.live_text import LiveText
from self_healing.supervisor.watch.silence import BUSY_TIMES, LEAST_PATIENCE_S, START_UP, TRAINING, Silence


def trained(*, gap_s=1.0, until_s=100.0):
    silence = Silence()
    now = 0.0
    while now < until_s:
        now += gap_s
        silence.hear(now, TRAINING)
    return silence, now


def test_before_the_first_step_it_may_take_long():
    silence = Silence()
    silence.hear(5.0, START_UP)
    assert silence.hangs(1700.0) is None
    assert silence.hangs(1900.0) is not None


def test_an_idle_command_hangs_when_it_is_silent_for_long():
    silence, now = trained()
    assert silence.hangs(now + LEAST_PATIENCE_S - 1) is None
    assert "no output and no work" in silence.hangs(now + LEAST_PATIENCE_S + 1)


def test_the_longest_silence_that_ended_well_is_learned():
    silence, now = trained(gap_s=400.0, until_s=2000.0)
    assert silence.patience_s() == 5 * 400.0
    assert silence.hangs(now + 1999.0) is None
    assert silence.hangs(now + 2001.0) is not None


def test_work_is_a_sign_of_life_for_a_while_only():
    silence, now = trained()
    for later in range(0, 4000, 10):
        silence.see_processor(now + later, used_s=1000.0 + later)
    assert silence.hangs(now + BUSY_TIMES * LEAST_PATIENCE_S - 10) is None or silence.hangs(now + 3590.0) is None
    for later in range(0, 5000, 10):
        silence.see_processor(now + later, used_s=1000.0 + later)
    assert "though it is busy" in silence.hangs(now + BUSY_TIMES * LEAST_PATIENCE_S + 10)


def test_a_little_work_of_helpers_is_none():
    silence, now = trained()
    for later in range(0, 700, 10):
        silence.see_processor(now + later, used_s=1000.0 + 0.01 * later)
    assert silence.hangs(now + LEAST_PATIENCE_S + 1) is not None


def test_what_the_user_has_set_holds_whatever_was_learned():
    silence = Silence(fixed_s=3.0)
    silence.hear(50.0, TRAINING)
    silence.see_processor(52.0, 10.0)
    silence.see_processor(54.0, 12.0)
    assert silence.hangs(52.9) is None
    assert "--hang-timeout 3" in silence.hangs(53.1)


def test_what_we_read_before_the_command_is_started_is_no_time_of_its_own(tmp_path, monkeypatch):
    def slowly(on_lines):
        time.sleep(0.5)
        return LiveText(on_lines)

    monkeypatch.setattr(running, "LiveText", slowly)
    start = Start(number=1, argv=["true"], environ=os.environ, cwd=tmp_path, folder=tmp_path / "attempt-1")
    began_s = time.monotonic()
    with SignalDesk() as desk:
        attempt = Running(start, RunSettings(), desk).run()
    assert attempt.seconds < time.monotonic() - began_s - 0.4


def test_each_phase_has_its_own_patience():
    silence = Silence()
    silence.hear(1.0, "evaluation")
    silence.hear(401.0, TRAINING)
    assert silence.patience_s() == LEAST_PATIENCE_S, "an evaluation has taken long, a step has not"
    silence.hear(402.0, "evaluation")
    assert silence.patience_s() == 5 * 400.0


def watched(tmp_path, code, settings=None, **given):
    argv = [sys.executable, "-u", "-c", code]
    start = Start(number=1, argv=argv, environ=os.environ, cwd=tmp_path, folder=tmp_path / "attempt-1", **given)
    with SignalDesk() as desk:
        return Running(start, settings or RunSettings(), desk).run()


NAN_LINES = """
import time
for step in range(5):
    print({"loss": float("nan"), "step": step}, flush=True)
    time.sleep(0.3)
"""


def test_what_is_healed_inside_ends_nothing_from_outside(tmp_path):
    assert watched(tmp_path, NAN_LINES, heals_itself=lambda: True).ended_by is EndedBy.ITSELF
    assert watched(tmp_path, NAN_LINES).ended_by is EndedBy.NAN


def test_a_heartbeat_that_changes_is_a_sign_of_life(tmp_path):
    settings = RunSettings(hang_timeout=1.5, grace=0.5)
    silent = "import time; time.sleep(4)"
    assert watched(tmp_path, silent, settings, beats=time.monotonic).status == 0
    for_long = "import time; time.sleep(60)"  # it is ended before, however busy the machine is
    assert watched(tmp_path, for_long, settings, beats=lambda: "the same").ended_by is EndedBy.HANG
