"""Which of many lines is the root: the first cause wins over what it dragged down, whoever printed it."""

from __future__ import annotations

import pytest

from self_healing.core.discover import discover_patterns
from self_healing.core.failure import Severity
from self_healing.diagnosis import TextReading, text_findings
from self_healing.diagnosis.text_finding import TextFinding
from self_healing.readers import Line
from self_healing.readers.log_text import Block

PATTERNS = discover_patterns("self_healing.patterns")
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.21.5"
TERMINATED = """\
W0304 10:00:00.000000 140 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 81 closing signal SIGTERM
E0304 10:00:01.000000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 84) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  host      : node-7
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 84)
  error_file: {file}
  traceback : {traceback}
"""
NO_FILE = TERMINATED.format(
    file="<N/A>", traceback="To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
)
STEPS = "".join(f"{{'loss': {2.5 - step / 100:.2f}, 'grad_norm': 1.4, 'epoch': {step / 100}}}\n" for step in range(60))


def found(text: str) -> list[TextFinding]:
    return text_findings((Line(number, line) for number, line in enumerate(text.split("\n"), 1)), PATTERNS)


def root(text: str) -> TextFinding:
    return found(text)[0]


def trace(error: str, prefix: str = "", function: str = "main") -> str:
    return "".join(
        f"{prefix}{line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 812, in <module>',
            "    main()",
            f'  File "/home/u/train.py", line 700, in {function}',
            "    loss.backward()",
            "    ^^^^^^^^^^^^^^^",
            error,
        )
    )


def interleaved(*texts: str) -> str:
    """Mix the lines of several processes, one of each in turn."""
    columns = [text.splitlines() for text in texts]
    longest = max(map(len, columns))
    return "\n".join(column[i] for i in range(longest) for column in columns if i < len(column)) + "\n"


def test_an_oom_is_the_root_of_the_nccl_errors_of_the_other_ranks():
    text = STEPS + trace(OOM, "[rank3]: ") + trace(NCCL, "[rank0]: ") + trace(NCCL, "[rank1]: ") + NO_FILE
    answer = root(text)
    assert answer.fine == "oom_gpu"
    assert "by rank 3" in answer.because
    assert "nccl-failed" in answer.because


def test_it_is_the_root_also_where_the_others_are_heard_first():
    assert root(trace(NCCL, "[rank0]: ") + trace(OOM, "[rank3]: ") + NO_FILE).fine == "oom_gpu"


def test_ranks_that_write_at_the_same_time_are_told_apart():
    answer = root(interleaved(trace(OOM, "[rank3]: "), trace(NCCL, "[rank0]: "), trace("ValueError: x", "[rank1]: ")))
    assert answer.fine == "oom_gpu"
    assert all(seen.text.startswith(("  File", "    ", "torch.OutOf")) for seen in answer.evidence)
    assert "by rank 3" in answer.because


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank2]: ",
        "[default2]:",
        "[2]:",
        "(RolloutWorker pid=812, ip=10.0.0.2) ",
        "2: ",
        "[1,2]<stderr>:",
        "worker-2: ",
    ],
)
def test_the_prefixes_of_launchers_are_known(prefix):
    other = "[rank0]: " if prefix != "[rank0]: " else ""
    text = interleaved(trace("mylib.errors.FrobError: no frob", prefix), trace(NCCL, other))
    answer = root(text)
    assert answer.name == "exception-unknown"
    assert "mylib.errors.FrobError" in answer.because
    assert [seen.text for seen in answer.evidence][-1] == "mylib.errors.FrobError: no frob"


def test_a_full_disk_is_the_root_of_a_launcher_that_ends_all():
    text = trace("OSError: [Errno 28] No space left on device: '/data/out/checkpoint-40/optimizer.pt'") + NO_FILE
    answer = root(text)
    assert answer.fine == "disk_full"
    assert any("/data/out/checkpoint-40" in fix for fix in answer.fix)


def test_what_the_kernel_says_is_the_root_of_a_killed_rank():
    text = "[81231.1] Out of memory: Killed process 84 (python) total-vm:1kB\n" + NO_FILE.replace(
        "exitcode  : 1", "exitcode  : -9"
    )
    assert root(text).name == "host-out-of-memory"


def test_an_error_file_that_the_launcher_prints_is_read():
    inside = TERMINATED.format(
        file="/tmp/torchelastic_1/none_x/attempt_0/3/error.json",
        traceback=(
            'Traceback (most recent call last):\n    File "/home/u/train.py", line 3, in main\n      raise KeyError("x")\n'
            "  KeyError: 'pixel_values'\n"
        ),
    )
    answer = root(inside)
    assert answer.fine == "script_error"
    assert answer.because.startswith("KeyError is printed")


def test_only_the_summary_of_a_launcher_means_that_the_cause_is_elsewhere():
    answer = root(NO_FILE)
    assert answer.fine == "unknown_child_failure"
    assert "The cause is not in this text" in answer.because
    assert any("rank 3 on node-7" in fix for fix in answer.fix)


def test_the_error_file_is_where_to_look():
    answer = root(TERMINATED.format(file="/tmp/x/3/error.json", traceback="(see the file)"))
    assert any("/tmp/x/3/error.json" in fix for fix in answer.fix)


def test_a_tracker_that_says_goodbye_does_not_know_the_cause():
    answer = root("wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.\n")
    assert answer.fine == "unknown_child_failure"
    assert "The cause is not in this text" in answer.because


def test_killed_alone_is_probably_memory_and_says_how_to_be_sure():
    answer = root("Epoch 1\nrun.sh: line 14: 20931 Killed                  python train.py\n")
    assert answer.fine == "oom_host"
    assert "does not show" in answer.because
    assert any("dmesg" in fix for fix in answer.fix)


def test_the_first_exception_of_a_chain_is_the_root():
    text = (
        trace("KeyError: 'frob'", function="load")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace("RuntimeError: could not load the frob")
    )
    answer = root(text)
    assert answer.because.startswith("KeyError")
    assert [line.text for line in answer.evidence][-1] == "KeyError: 'frob'"


def test_a_wrapped_exception_that_says_more_is_the_root():
    text = (
        trace("KeyError: 'frob'", function="cached")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace(OOM)
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + trace("RuntimeError: worker failed")
    )
    assert root(text).fine == "oom_gpu"


def test_an_exception_that_nobody_knows_is_reported_with_its_place():
    answer = root("INFO start\n" + trace("frob.core.FrobError: the frob is bent"))
    assert (answer.name, answer.fine, answer.line) == ("exception-unknown", "script_error", 8)
    assert any("line 700, in main" in seen.text for seen in answer.evidence)


def test_a_bar_before_a_traceback_does_not_hide_it():
    assert root("  0%|          | 0/400 [00:00<?, ?it/s]" + trace(OOM)).fine == "oom_gpu"


def test_attempts_that_failed_before_a_run_that_ended_well_are_only_mentioned():
    answers = found(trace(OOM) + STEPS + "Training completed successfully!\n")
    assert [(a.fine, a.severity) for a in answers] == [("oom_gpu", Severity.INFO)]


def test_what_the_run_went_past_is_not_what_ended_it():
    warned = (
        "ERROR requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\n"
    )
    answers = found(warned + STEPS + trace("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)"))
    assert answers[0].fine == "shape_mismatch"
    assert [a.severity for a in answers if a.fine == "network"] == [Severity.INFO]


def test_a_loss_that_stays_nan_is_no_success_whatever_is_said_at_the_end():
    answers = found("{'loss': nan, 'epoch': 0.1}\n" * 50 + "Training completed successfully!\n")
    assert answers[0].fine == "nan_loss"
    assert answers[0].severity == Severity.ERROR


def test_a_remark_is_less_than_an_exception():
    text = "UserWarning: [Errno 98] Address already in use, taking another port\n" + trace("KeyError: 'labels'")
    assert root(text).because.startswith("KeyError")


def test_a_run_that_was_interrupted_is_a_warning():
    answer = root(STEPS + trace("KeyboardInterrupt", "[rank0]: "))
    assert (answer.fine, answer.severity) == ("user_interrupt", Severity.WARNING)


def test_healthy_text_gives_nothing_away():
    assert found(STEPS * 3 + "{'train_runtime': 12.1, 'train_loss': 2.1}\n") == []


def test_a_text_that_stops_in_the_middle_says_so():
    answers = found("  0%|          | 44/20000 [02:23<12:02:06,  2.17s/it]\n")
    assert [(a.fine, a.severity) for a in answers] == [("truncated", Severity.WARNING)]
    assert "44 of 20000" in answers[0].because


def test_a_traceback_that_goes_over_blocks_is_whole():
    whole = "start\n" + trace(OOM, "[rank3]: ") + trace(NCCL, "[rank0]: ")
    numbered = list(enumerate(whole.split("\n"), 1))
    for size in (1, 2, 3, 5):
        reading = TextReading(PATTERNS)
        for at in range(0, len(numbered), size):
            piece = numbered[at : at + size]
            reading.feed(Block([number for number, _ in piece], "\n".join(line for _, line in piece)))
        answer = reading.findings()[0]
        assert (answer.fine, answer.line) == ("oom_gpu", 8), size


def test_the_key_is_the_one_that_the_run_printed():
    seen = "TrainingArguments(\nper_device_train_batch_size=8,\ngradient_accumulation_steps=2,\nmax_length=2048,\n)\n"
    assert any(
        "per_device_train_batch_size: 4 (it is 8) and gradient_accumulation_steps: 4 (it is 2)" in fix
        for fix in root(seen + trace(OOM)).fix
    )
    assert any("Halve per_device_train_batch_size" in fix for fix in root("import trl.trainer\n" + trace(OOM)).fix)
    assert any("train_micro_batch_size_per_gpu" in fix for fix in root("[deepspeed] go\n" + trace(OOM)).fix)


def test_another_process_on_the_gpu_is_named_first():
    text = trace(OOM + " Process 4711 has 70.25 GiB memory in use.")
    assert root(text).fix[0].startswith("Process 4711 holds 70.25 GiB")


def test_a_remark_alone_is_information():
    answers = found(
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 10020).\n"
    )
    assert [(a.fine, a.severity) for a in answers] == [("cuda_version_mismatch", Severity.INFO)]


def test_a_word_of_success_right_after_an_exception_is_not_believed():
    answer = root(STEPS + trace(OOM) + "Training finished.\n")
    assert (answer.fine, answer.severity) == ("oom_gpu", Severity.ERROR)


def test_the_summary_of_a_tracker_is_no_progress():
    summary = "".join(f"wandb:  train/loss_{n} 0.{n}\n" for n in range(60))
    assert root(STEPS + trace(OOM) + summary).severity == Severity.ERROR


def test_an_exit_is_the_consequence_of_what_was_said_before():
    text = "train.py: error: unrecognized arguments: --local-rank=0\n" + trace("SystemExit: 2") + NO_FILE
    assert root(text).fine == "config_error"
    assert root(trace("SystemExit: 1") + trace("KeyError: 'x'")).because.startswith("KeyError")


def test_a_bar_that_other_lines_follow_is_not_the_end():
    bar = "  2%|          | 44/20000 [02:23<12:02:06,  2.17s/it]\n"
    assert found(bar + "saved to out\n" * 9) == []


NOTEBOOK = """\
---------------------------------------------------------------------------
FrobError                                 Traceback (most recent call last)
Cell In[7], line 3
----> 3 trainer.train()

File /opt/lib/frob/x.py:1885, in train(self)
-> 1885     return loop(

FrobError: the frob is bent
"""
BOX = """\
\u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e
\u2502 /home/u/train.py:12 in main           \u2502
\u2502                                       \u2502
\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f
FrobError: the frob is bent
"""


@pytest.mark.parametrize(("text", "line"), [(NOTEBOOK, 9), (BOX, 5), ("frob.FrobError: the frob is bent\n", 1)])
def test_other_forms_of_exceptions_are_read(text, line):
    answer = root("start\n" + text)
    assert (answer.name, answer.line) == ("exception-unknown", line + 1)
    assert "FrobError is printed" in answer.because


def test_an_exception_that_python_ignored_ended_nothing():
    text = "Exception ignored in: <function Loader.__del__ at 0x7f>\n" + trace(
        "AssertionError: can only test a child process"
    )
    assert found(text) == []


def test_an_earlier_cause_that_is_much_less_sure_gives_way():
    worker = "RuntimeError: Caught OSError in DataLoader worker process 0.\nOriginal "
    text = trace(worker + trace("OSError: [Errno 28] No space left on device: '/data/x'").rstrip())
    assert root(text).fine == "disk_full"


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_kernel_that_reports_an_index_out_of_range_is_the_root_of_the_library_call_that_fails_for_it(prefix):
    kernel = (
        "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [4,0,0], thread: [3,0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.\n"
    )
    library = trace(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", prefix
    )
    assert root(kernel + library).fine == "device_assert"
    assert root(library).fine == "oom_gpu"


def test_what_is_said_after_an_exception_does_not_take_its_place():
    unsure = trace("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    assert root(f"{unsure}\ncp: error writing 'core': No space left on device\n").fine == "oom_gpu"


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        (
            "submitit WARNING (2026-08-12 02:06:11) - Caught signal SIGUSR2 on gpu-7: this job is preempted.",
            "preempted",
        ),
        ("  Warning  Evicted    3m    kubelet  The node was low on resource: ephemeral-storage.", "disk_full"),
        ("  Warning  Evicted    3m    kubelet  The node was low on resource: memory.", "oom_host"),
        ("  Warning  Preempted  3m    default-scheduler  Preempted by scheduler: pod train-0", "preempted"),
    ],
)
def test_the_end_of_a_run_that_is_told_as_a_warning_is_no_remark(line, fine):
    finding = root(f"{STEPS}{line}\n")
    assert (finding.fine, finding.severity) == (fine, Severity.ERROR)


def test_an_exception_that_nobody_knows_is_told_without_its_traceback_too():
    assert root("OutOfRangeError: End of sequence\n\t [[node IteratorGetNext]]").fine == "script_error"
    assert root("[rank2]: BadThingError: 'x' is not known\n").fine == "script_error"


def test_metrics_that_are_called_errors_are_no_exceptions():
    text = "".join(f"MeanSquaredError: 0.{step}\nRootMeanSquaredError: {step}.5\n" for step in range(5))
    assert not found(f"{text}RMSError: nan\nMeanAbsoluteError: -0.5\nStandardError\n")
