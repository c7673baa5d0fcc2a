"""Commands that start several processes: recognised, restarted reliably, and the rank that failed first is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from self_healing.supervisor.launcher import Kind, Launcher, launcher_of
from self_healing.supervisor.torchrun import RankFailure, SummaryReader, exports, first_failure, read_errors

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("command", "kind", "options_at"),
    [
        ("torchrun --nproc-per-node 2 train.py", Kind.TORCHRUN, 1),
        ("/opt/venv/bin/torchrun train.py", Kind.TORCHRUN, 1),
        ("python -m torch.distributed.run train.py", Kind.TORCHRUN, 3),
        ("python3.11 -u -m torch.distributed.launch --nproc_per_node=8 train.py", Kind.TORCHRUN, 4),
        ("accelerate launch --num_processes 2 train.py", Kind.ACCELERATE, 2),
        ("python -m accelerate.commands.launch train.py", Kind.ACCELERATE, 3),
        ("accelerate-launch train.py", Kind.ACCELERATE, 1),
        ("env OMP_NUM_THREADS=1 uv run torchrun train.py", Kind.TORCHRUN, 5),
    ],
)
def test_a_launcher_is_recognised(command, kind, options_at):
    assert launcher_of(command.split()) == Launcher(kind, options_at)


@pytest.mark.parametrize(
    "command",
    ["python train.py", "python train.py --launcher torchrun", "python -m axolotl.cli.train torchrun", "accelerate config",
     "bash run.sh torchrun", "deepspeed train.py", "", "python -c torchrun"],
)  # fmt: skip
def test_what_starts_its_script_by_itself_is_no_launcher(command):
    assert launcher_of(command.split()) is None


def test_each_attempt_gets_a_log_folder_of_its_own_unless_the_user_has_named_one(tmp_path):
    argv = "torchrun --nproc-per-node 2 train.py --log-dir mine".split()
    launcher = launcher_of(argv)
    assert launcher.log_folder(argv) is None, "that is the script's own"
    module = "torchrun -m package.train --log-dir mine".split()
    assert launcher_of(module).log_folder(module) is None, "as is that of a module"
    prepared = launcher.with_log_folder(argv, tmp_path)
    assert prepared == [
        "torchrun",
        "--log-dir",
        str(tmp_path),
        "--nproc-per-node",
        "2",
        "train.py",
        "--log-dir",
        "mine",
    ]
    for named in ("--log-dir logs", "--log_dir=logs", "--log-dir=logs"):
        argv = f"torchrun {named} train.py".split()
        assert launcher_of(argv).with_log_folder(argv, tmp_path) == argv
        assert launcher_of(argv).log_folder(argv) == Path("logs")
    argv = "accelerate launch train.py".split()
    assert launcher_of(argv).with_log_folder(argv, tmp_path) == [
        "accelerate",
        "launch",
        "--log_dir",
        str(tmp_path),
        "train.py",
    ]
    assert launcher_of(argv).log_folder(argv, {"PET_LOG_DIR": "/logs"}) == Path("/logs")


def test_restarts_are_made_reliable_unless_the_user_says_otherwise():
    assert exports({}) == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert exports({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}) == {}


# -- the summary -------------------------------------------------------------------------------------

SUMMARY = """
E1116 09:12:13.123000 4242 torch/distributed/elastic/multiprocessing/api.py:982] failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-16_09:12:13
  host      : node-7
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-16_09:12:13
  host      : node-7
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 4710)
  error_file: /tmp/torchelastic_x/none_y/attempt_0/0/error.json
  traceback : Traceback (most recent call last):
    RuntimeError: Connection closed by peer
============================================================
"""


def seen(text):
    reader = SummaryReader()
    for line in text.splitlines():
        reader.see(line)
    return reader.failures


def test_the_summary_is_read_line_by_line():
    first, second = seen(SUMMARY)
    assert (first.rank, first.local_rank, first.code, first.pid, first.host) == (5, 1, -9, 4711, "node-7")
    assert first.error_file is None
    assert (second.rank, second.code) == (4, 1)
    assert second.error_file == Path("/tmp/torchelastic_x/none_y/attempt_0/0/error.json")
    assert first.time_s == second.time_s == time.mktime((2026, 11, 16, 9, 12, 13, 0, 0, -1))


def test_who_was_killed_failed_before_who_lost_the_connection_whatever_torchrun_says():
    found = first_failure(seen(SUMMARY), [])
    assert found.rank == 5
    assert str(found) == "rank 5 on node-7: ended by SIGKILL"


def test_who_failed_long_before_is_first_whatever_came_later():
    late = RankFailure(rank=1, code=-9, time_s=1000.0)
    early = RankFailure(rank=0, code=1, time_s=900.0)
    assert first_failure([late, early], []).rank == 0


def test_who_was_ended_by_torchrun_or_aborted_for_another_is_not_first():
    ends = [RankFailure(rank=rank, code=code, time_s=9.0) for rank, code in enumerate((-15, -6, 1, -15))]
    assert first_failure(ends, []).rank == 2
    assert first_failure(ends[:2], []).rank == 1
    assert first_failure([*ends, RankFailure(rank=9, code=78, time_s=9.0)], []).rank == 9, "it gave up by itself"
    assert first_failure([], []) is None


def test_only_the_last_summary_counts_and_noise_does_no_harm():
    text = SUMMARY + "\n[0]:\n  rank : x\n[3]:\n  time : never\n" + SUMMARY.replace("rank      : 5", "rank      : 7")
    assert [each.rank for each in seen(text)] == [7, 4]
    assert seen("[0]:\n  rank      : 1\n  exitcode  : 1\n  error_file: <N/A>\n" * 9000)[4095:] != []
    assert len(seen("[0]:\n  rank      : 1\n  exitcode  : 1\n  error_file: <N/A>\n" * 9000)) == 4096


# -- error files -------------------------------------------------------------------------------------


def recorded(folder, rank, message, at, trace=""):
    path = folder / str(rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": trace, "timestamp": str(at)}}})
    )
    return path


def test_error_files_of_the_last_start_are_read_the_first_failure_first(tmp_path):
    recorded(tmp_path / "none_a" / "attempt_0", 0, "ValueError: old", 100)
    recorded(tmp_path / "none_a" / "attempt_1", 1, "RuntimeError: Connection closed by peer", 205)
    recorded(tmp_path / "none_a" / "attempt_1", 0, "OutOfMemoryError: CUDA out of memory", 200)
    (tmp_path / "none_a" / "attempt_1" / "2").mkdir()
    (tmp_path / "none_a" / "attempt_1" / "2" / "error.json").write_text('{"message": {"mess')
    found = read_errors(tmp_path)
    assert [(each.rank, each.message.split(":")[0]) for each in found] == [(0, "OutOfMemoryError"), (1, "RuntimeError")]
    assert [each.rank for each in read_errors(tmp_path, since_s=203.0)] == [1]
    assert read_errors(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "content", ["[]", '{"message": 7}', "", '{"message": {"extraInfo": 3}}', '{"message": "killed", "timestamp": "x"}']
)
def test_odd_error_files_do_no_harm(content, tmp_path):
    folder = tmp_path / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(content)
    read_errors(tmp_path)


def test_a_cause_comes_before_what_other_ranks_say_of_it(tmp_path):
    """The rank that ran out of memory wrote its file a second after another had lost the connection to it."""
    attempt = tmp_path / "none_a" / "attempt_0"
    echo = recorded(attempt, 0, "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:31", 200)
    cause = recorded(attempt, 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 201)
    summary = [RankFailure(rank=3, local_rank=1, code=1, time_s=201.0, error_file=cause),
               RankFailure(rank=2, local_rank=0, code=1, time_s=200.0, error_file=echo)]  # fmt: skip
    found = first_failure(summary, read_errors(tmp_path))
    assert (found.rank, found.error_file) == (3, cause)
    assert "CUDA out of memory" in found.message
    assert first_failure([], read_errors(tmp_path)).local_rank == 1, "also where there is no summary"


# -- real launches -----------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank, again = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in range(40):
        dist.all_reduce(torch.ones(1))
        if step == 10 and rank == 1 and not again:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise ValueError("the cause")
            if how == "code":
                os._exit(78)
    print("done", rank, again, flush=True)
    dist.destroy_process_group()  # without it, gloo's threads now and then abort the interpreter at its end

main()
"""


def launched(folder, how, *more):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    argv = [*LAUNCH, *more, str(script), how]
    argv = launcher_of(argv).with_log_folder(argv, folder / "logs")
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, **exports({}), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    reader, lines = SummaryReader(), []
    try:
        for line in process.stdout:
            reader.see(line.rstrip("\n"))
            lines.append(line)
        return process.wait(timeout=120), reader.failures, "".join(lines)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "said"), [("kill", "ended by SIGKILL"), ("raise", "ValueError: the cause"), ("code", "ended with code 78")]
)
def test_the_rank_that_failed_in_a_real_launch_is_named(how, said, tmp_path):
    began = time.time()
    code, summary, output = launched(tmp_path, how, "--standalone")
    assert code == 1, output
    found = first_failure(summary, read_errors(tmp_path / "logs", began))
    assert found is not None, output
    assert found.rank == 1, output
    assert said in str(found)
    if how == "raise":
        assert 'raise ValueError("the cause")' in found.traceback


@pytest.mark.torch
def test_a_restart_of_the_processes_finds_them_together_again(tmp_path):
    """Without what is exported, most restarts on gloo fail to connect."""
    code, _, output = launched(
        tmp_path, "kill", "--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"
    )
    assert code == 0, output
    assert output.count("done") == 2
