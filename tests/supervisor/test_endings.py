"""However a command ends, or is ended: it is started again where that helps, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from self_healing.report.postmortem import read_postmortem

from .conftest import MARK, SOURCE

# --- how the command ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "cause"),
    [
        ("sigkill", "killed_unknown"), ("sigsegv", "segfault"), ("exit-3", "crash"), ("exit-137", "killed_unknown"),
        ("exit-75", "preempted"), ("network", "network"),
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again_with_the_same_settings(heal, thing, cause):
    ran = heal.run(thing, "finish")
    assert (ran.code, heal.causes()) == (0, [cause, ""])
    assert len({attempt[1:] for attempt in heal.attempts()}) == 1
    assert heal.survivors() == []


@pytest.mark.parametrize(("thing", "code"), [("script-error", 1), ("exit-78", 78)])
def test_what_a_person_has_to_mend_ends_the_job_at_once(heal, thing, code):
    ran = heal.run(thing)
    assert (ran.code, len(heal.attempts())) == (code, 1)
    assert "another attempt would meet the same" in ran.err


def test_a_script_that_a_shell_does_not_find_ends_the_job_at_once(heal):
    process = heal.start("--backoff", "0", command=["sh", "-c", f"{sys.executable} trian.py"])
    process.communicate(timeout=30)
    assert (process.returncode, heal.causes()) == (2, ["config_error"])


def test_the_code_of_a_command_that_is_given_up_is_its_own_and_of_a_signal_128_more(heal):
    assert heal.run("exit-3", flags=("--max-retries", "0")).code == 3
    assert heal.run("sigsegv", flags=("--max-retries", "0")).code == 128 + signal.SIGSEGV


def test_three_attempts_that_come_no_further_are_enough(heal):
    ran = heal.run("sigkill")
    assert (ran.code, len(heal.attempts())) == (137, 3)
    assert "have come no further" in ran.err


def test_memory_that_nothing_can_be_changed_about_is_tried_three_times_only(heal):
    process = heal.start("--backoff", "0", command=["sh", "-c", "kill -BUS $$"])
    _, err = process.communicate(timeout=30)
    assert (process.returncode, heal.causes()) == (128 + signal.SIGBUS, ["oom_shm"] * 3)
    assert "have come no further" in err


def test_a_command_that_cannot_be_started_again_ends_with_the_code_it_had(heal):
    script = heal.folder / "once.sh"
    script.write_text('#!/bin/sh\nrm "$0"\nexit 3\n')
    script.chmod(0o755)
    process = heal.start("--backoff", "0", command=["./once.sh"])
    _, err = process.communicate(timeout=30)
    assert (process.returncode, heal.causes()) == (3, ["crash"])
    assert "cannot be started again" in err
    assert (heal.run_dir / "postmortem.json").exists()


def test_a_log_that_cannot_be_opened_is_one_sentence_before_anything_is_started(heal):
    (heal.run_dir / "heal.log").mkdir(parents=True)
    ran = heal.run("finish")
    assert (ran.code, "heal.log: cannot be written (Is a directory)" in ran.err) == (2, True)
    assert not (heal.folder / "state").exists()


def test_a_command_that_closes_its_output_is_left_alone(heal):
    ran = heal.run("close-stdout")
    assert (ran.code, len(heal.attempts())) == (0, 1)


@pytest.mark.parametrize("thing", ["hang", "stop"])
def test_a_command_that_hangs_is_ended_and_started_again(heal, thing):
    ran = heal.run(thing, "finish", flags=("--hang-timeout", "2"))
    assert (ran.code, heal.causes()) == (0, ["hang", ""])
    assert (heal.run_dir / "healing" / "attempt-1" / "stacks.txt").read_text().startswith("process ")
    assert heal.survivors() == []


def test_a_hung_python_shows_where_it_stood(heal):
    heal.run("hang", "finish", flags=("--hang-timeout", "2"))
    assert "in hang" in (heal.run_dir / "healing" / "attempt-1" / "output.log").read_text()


def test_helpers_that_will_not_end_are_killed(heal):
    ran = heal.run("grandchildren", "finish")
    assert ran.code == 0
    assert heal.survivors() == []


# --- how the supervisor ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", ["stubborn", "grandchildren-and-hang"])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "two SIGINT", "SIGKILL"])
def test_when_the_supervisor_ends_nothing_is_left(heal, thing, how):
    process = heal.start("--grace", "1", command=heal.job(thing))
    heal.wait_for_attempt()
    if how == "two SIGINT":
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    else:
        process.send_signal(signal.Signals[how])
    process.communicate(timeout=20)
    assert process.returncode == {"SIGTERM": 143, "SIGHUP": 129, "two SIGINT": 130, "SIGKILL": -9}[how]
    assert heal.survivors(10.0) == []


def test_a_command_that_ends_with_0_because_of_us_has_not_succeeded(heal):
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('on', flush=True); time.sleep(60)"
    )
    process = heal.start(command=[sys.executable, "-c", code])
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 1


def test_a_job_that_hung_to_the_last_ends_with_1_and_says_that_it_was_given_up(heal):
    process = heal.start("--hang-timeout", "1", "--max-retries", "0", "--grace", "1", command=["sleep", "60"])
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert read_postmortem(heal.run_dir / "postmortem.json").exit_reason == "unrecoverable"


TELLS = """\
import json, os, pathlib, sys
pathlib.Path(os.environ["SELF_HEALING_RUN_DIR"], "postmortem.json").write_text(json.dumps({"mine": True}))
sys.exit("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443): Max retries exceeded with url: /")
"""


def test_what_a_command_has_told_itself_is_not_overwritten_however_long_the_next_attempt_is_waited_for(heal):
    process = heal.start("--backoff", "60", command=[sys.executable, "-c", TELLS])
    until = time.monotonic() + 20
    log = heal.run_dir / "heal.log"
    while time.monotonic() < until and not (log.exists() and "the next attempt begins in" in log.read_text()):
        time.sleep(0.05)
    time.sleep(2.0)  # longer than the attempt took
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert json.loads((heal.run_dir / "postmortem.json").read_text()) == {"mine": True}


def test_a_second_interrupt_does_not_wait_for_the_grace(heal):
    process = heal.start("--grace", "60", command=heal.job("stubborn"))
    heal.wait_for_attempt()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert heal.survivors(2.0) == []


def test_a_command_that_saves_itself_is_given_the_time(heal):
    process = heal.start("--grace", "30", command=heal.job("train"))
    heal.wait_for_attempt()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, "saved on signal 15" in out) == (75, True)
    assert len(heal.attempts()) == 1


def test_the_helpers_that_a_command_needs_to_save_itself_are_left_to_it(heal):
    process = heal.start("--grace", "30", command=heal.job("train-with-helper"))
    heal.wait_for_attempt()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, "saved by the helper: state" in out) == (75, True)


def test_a_warning_signal_is_passed_on_without_a_time_limit(heal):
    process = heal.start("--grace", "1", command=heal.job("train"))
    heal.wait_for_attempt()
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, "saved on signal 10" in out) == (75, True)


def test_a_command_that_uses_the_warning_for_something_else_may_still_succeed(heal):
    process = heal.start("--grace", "1", command=heal.job("warned"))
    heal.wait_for_attempt()
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, "noted" in out, "step 59" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("number", "asked"), [(signal.SIGUSR1, "requeue 4711\n"), (signal.SIGTERM, "")], ids=["warned", "cancelled"]
)
def test_under_slurm_a_command_that_has_saved_itself_is_requeued_after_a_warning_only(heal, number, asked):
    tool = heal.folder / "bin" / "scontrol"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" > {heal.folder}/asked\n')
    tool.chmod(0o755)
    (heal.folder / "asked").touch()
    path = f"{tool.parent}:{os.environ['PATH']}"
    process = heal.start("--grace", "5", command=heal.job("train"), SLURM_JOB_ID="4711", PATH=path)
    heal.wait_for_attempt()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, (heal.folder / "asked").read_text()) == (75, asked)
    assert ("requeued" in err) == bool(asked)


@pytest.mark.parametrize(
    ("do", "reason", "code"),
    [
        (("sigkill", "finish"), "completed", 0),
        (("script-error",), "exception", 1),
        (("sigkill",), "killed", 137),
        (("exit-78",), "unrecoverable", 78),
    ],
)
def test_a_postmortem_is_written_where_the_command_could_not(heal, do, reason, code):
    assert heal.run(*do).code == code
    told = read_postmortem(heal.run_dir / "postmortem.json")
    assert told.exit_reason == reason
    assert [each["class"] for each in told.incidents] == [cause for cause in heal.causes() if cause]
    assert [each["attempt"] for each in told.attempts] == list(range(1, len(heal.attempts()) + 1))
    assert len(told.recovery_actions) == len(told.attempts) - 1
    assert bool(told.advice) == (reason == "exception")


def test_when_the_process_between_is_killed_nothing_is_left_and_the_command_is_started_again(heal):
    process = heal.start("--grace", "1", command=heal.job("grandchildren-and-hang", "finish"))
    command = heal.wait_for_attempt()
    shim = psutil.Process(command).ppid()
    assert shim != process.pid
    os.kill(shim, signal.SIGKILL)
    process.communicate(timeout=30)
    assert (process.returncode, len(heal.attempts())) == (0, 2)
    assert heal.survivors() == []


def test_the_exit_of_a_shell_between_leaves_its_command_time_to_save(heal):
    job = " ".join(heal.job("train"))
    process = heal.start("--grace", "10", command=["sh", "-c", f"{job}; true"])
    heal.wait_for_attempt()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert "saved on signal 15" in out
    assert heal.survivors() == []


def test_a_job_that_is_to_outlive_its_terminal_does(heal):
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "nohup", sys.executable, "-m", "self_healing", "run"]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), MARK: heal.mark}
    flags = ["--run-dir", str(heal.run_dir), "--grace", "1", "--"]
    process = subprocess.Popen([*command, *flags, *heal.job("warned")], cwd=heal.folder, env=environ)
    heal.started.append(process)
    child = heal.wait_for_attempt()
    process.send_signal(signal.SIGHUP)
    os.kill(child, signal.SIGHUP)
    process.communicate(timeout=20)
    assert (process.returncode, len(heal.attempts())) == (0, 1)


def test_jobs_that_are_started_in_the_same_second_get_folders_of_their_own(heal):
    command = [sys.executable, "-m", "self_healing", "run", "--", "true"]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), MARK: heal.mark}
    heal.started += [subprocess.Popen(command, cwd=heal.folder, env=environ) for _ in range(4)]
    assert [process.wait(30) for process in heal.started] == [0] * 4
    assert len(list((heal.folder / "heal-runs").iterdir())) == 4


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
def test_a_supervisor_without_a_standard_stream_does_its_work(heal, stream):
    closed = ["sh", "-c", f'exec "$@" {stream}', "closed", sys.executable, "-m", "self_healing", "run"]
    flags = ["--run-dir", str(heal.run_dir), "--", sys.executable, "-c", "print('to nobody')"]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), MARK: heal.mark}
    done = subprocess.run(
        [*closed, *flags], cwd=heal.folder, env=environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert done.stdout == ("" if stream == ">&-" else "to nobody\n")
    assert heal.output(1) == "to nobody\n"
    assert "to nobody" not in (heal.run_dir / "healing" / "lock.supervisor").read_text()


def test_a_variable_before_the_command_is_not_taken_for_an_override(heal):
    (heal.folder / "train.py").write_text("")
    (heal.folder / "configs").mkdir()
    (heal.folder / "configs" / "config.yaml").write_text("lr: 1.0e-3\n")
    process = heal.start(command=["CUDA_VISIBLE_DEVICES=0", sys.executable, "train.py"])
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "-- env CUDA_VISIBLE_DEVICES=0" in err) == (2, True)


def test_a_program_that_does_not_exist_is_one_sentence(heal):
    process = heal.start(command=["no-such-program-anywhere"])
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "no-such-program-anywhere" in err.strip().splitlines()[-1]


def test_standard_input_reaches_the_command(heal):
    command = [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--"]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), MARK: heal.mark}
    done = subprocess.run(
        [*command, sys.executable, "-c", "print(input())"], input=b"given\n", stdout=subprocess.PIPE, cwd=heal.folder,
        env=environ, check=True,
    )  # fmt: skip
    assert done.stdout == b"given\n"
