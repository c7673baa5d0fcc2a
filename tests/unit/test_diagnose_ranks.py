"""What a folder of many ranks holds, and files that end in the middle: what is whole is read, the root comes first."""

from __future__ import annotations

import gzip
import json
import math
import os

import pytest

from self_healing.core.failure import Severity
from self_healing.diagnosis import diagnose_input
from self_healing.readers.trainer_state import CutOff, read_trainer_state

OOM = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 12, in main\n'
    "    loss = model(batch).loss\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15) ran for "
    "600060 milliseconds before timing out.\n"
)
LAUNCHER = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n"
    "Root Cause (first observed failure):\n[0]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 84)\n"
)
LAYOUTS = {
    "torchrun": "none_x1/attempt_0/{rank}/stderr.log",
    "a file each": "rank{rank}.log",
    "a folder each": "logs/rank_{rank}/train.log",
    "tasks of Slurm": "slurm_task-{rank}.out",
}


def written(folder, layout, texts):
    """Write what each rank said, one second after the other, and an empty file beside each."""
    for rank, text in enumerate(texts):
        path = folder / layout.format(rank=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1_700_000_000 + rank,) * 2)
        empty = path.with_name(f"stdout-{rank}.log")
        empty.write_text("")
        os.utime(empty, (1_700_000_100 + rank,) * 2)


def error_file(error, stack=None):
    """Return what torchrun's `record` writes."""
    extra = {"py_callstack": stack, "timestamp": "1718000000"} if stack is not None else {"timestamp": "1718000000"}
    return json.dumps({"message": {"message": error, "extraInfo": extra}})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rank_that_failed_first_is_found_among_many(tmp_path, layout):
    texts = [OOM if rank == 3 else TIMEOUT.format(rank=rank) for rank in range(32)]
    written(tmp_path, LAYOUTS[layout], texts)
    first, second = diagnose_input(tmp_path).findings[:2]
    assert (first.fine, second.fine) == ("oom_gpu", "nccl_timeout")
    assert f"in {LAYOUTS[layout].format(rank=3)}" in first.evidence


def test_files_of_other_runs_are_no_ranks(tmp_path):
    for number in range(20):
        path = tmp_path / f"run-{number}.log"
        path.write_text(OOM)
        os.utime(path, (1_700_000_000 + number,) * 2)
    read = [note for note in diagnose_input(tmp_path).notes if note.endswith("(log)")]
    assert len(read) == 6


def test_an_error_file_of_torchrun_is_read(tmp_path):
    path = tmp_path / "error.json"
    path.write_text(error_file("OutOfMemoryError: CUDA out of memory.", OOM))
    report = diagnose_input(path)
    assert (report.format, report.findings[0].fine) == ("torchrun-error", "oom_gpu")
    assert any("loss = model(batch).loss" in told for told in report.findings[0].evidence)
    path.write_text(error_file("RuntimeError: CUDA error: device-side assert triggered"))
    assert diagnose_input(path).findings[0].fine == "device_assert"
    path.write_text(error_file("OutOfMemoryError: CUDA out of memory.", OOM)[:-60])
    assert diagnose_input(path).findings[0].fine == "oom_gpu", "cut off, and still told"
    packed = tmp_path / "error.json.gz"
    packed.write_bytes(gzip.compress(error_file("x", OOM).encode()))
    assert (diagnose_input(packed).format, diagnose_input(packed).findings[0].fine) == ("torchrun-error", "oom_gpu")


def test_other_json_with_a_message_is_no_error_file(tmp_path):
    path = tmp_path / "reply.json"
    path.write_text('{"message": "Not Found", "documentation_url": "https://example.org"}')
    assert diagnose_input(path).findings[0].fine == "not_hf_format"


def test_an_error_file_speaks_before_the_launcher_and_the_other_ranks(tmp_path):
    written(tmp_path, LAYOUTS["torchrun"], [TIMEOUT.format(rank=rank) for rank in range(4)])
    (tmp_path / "train.log").write_text(LAUNCHER)
    (tmp_path / "none_x1/attempt_0/3/error.json").write_text(error_file("OutOfMemoryError", OOM))
    report = diagnose_input(tmp_path)
    assert report.findings[0].fine == "oom_gpu"
    assert "in none_x1/attempt_0/3/error.json" in report.findings[0].evidence


# -- files that end in the middle ----------------------------------------------------------------------------------


def state(count=80):
    """Return a run that overfits."""
    turn = [1.0, 0.9, 0.8, 0.7, 0.75, 0.85, 0.95, 1.1]
    history = [
        {"loss": 0.3 + 2.0 * math.exp(-i / 12), "step": i} | ({"eval_loss": turn[i // 10]} if i % 10 == 9 else {})
        for i in range(count)
    ]
    return json.dumps({"epoch": 2.0, "log_history": history, "max_steps": 100}, indent=2)


def test_the_whole_entries_of_a_state_that_was_cut_off_are_judged(tmp_path):
    path = tmp_path / "trainer_state.json"
    text = state()
    path.write_text(text[: text.index('"step": 79')])
    report = diagnose_input(path)
    first, *others = report.findings
    assert (report.is_usable, report.healthy) == (True, False)
    assert (first.fine, first.severity, first.name) == ("truncated", Severity.ERROR, "file-cut-off")
    assert "79 complete entries" in first.because
    assert "up to step 78" in first.because
    assert "overfitting" in [finding.fine for finding in others]


def test_a_state_may_end_anywhere(tmp_path):
    path, text = tmp_path / "trainer_state.json", state(4).replace("2.3,", "null,")
    text = text.replace('"step": 3', '"step": 3, "grad_norm": -Infinity, "done": true')
    for end in range(10, len(text) - 1):
        path.write_text(text[:end])
        report = diagnose_input(path)
        assert report.findings[0].fine == "truncated", text[end - 20 : end]
        assert str(path) in report.findings[0].because


def test_a_bare_list_that_was_cut_off_is_read_too(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(json.dumps([{"loss": 1.0 / (i + 1), "step": i} for i in range(20)])[:-5])
    assert "19 complete entries" in diagnose_input(path).findings[0].because


def test_a_packed_state_that_was_cut_off_is_called_by_its_own_name(tmp_path):
    path = tmp_path / "trainer_state.json.gz"
    path.write_bytes(gzip.compress(state()[:-300].encode()))
    first = diagnose_input(path).findings[0]
    assert first.fine == "truncated"
    assert str(path) in first.because


def test_a_state_with_next_to_nothing_before_the_cut_cannot_be_used(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(state()[:150])
    report = diagnose_input(path)
    assert (report.is_usable, report.findings[0].fine) == (False, "truncated")


def test_what_ended_the_run_comes_before_the_state_that_it_cut_off(tmp_path):
    (tmp_path / "trainer_state.json").write_text(state()[:-300])
    (tmp_path / "train.log").write_text("OSError: [Errno 28] No space left on device: 'out/checkpoint-80'\n")
    assert [finding.fine for finding in diagnose_input(tmp_path).findings[:2]] == ["disk_full", "truncated"]


def test_a_replay_still_refuses_a_state_that_was_cut_off(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(state()[:-300])
    with pytest.raises(CutOff, match="ends in the middle"):
        list(read_trainer_state(path))
