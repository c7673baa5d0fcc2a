"""Whose lines they are, what a text says of the run, and how pieces are ranked."""

from __future__ import annotations

import pytest

from self_healing.core.diagnosis import diagnose
from self_healing.core.discover import discover_patterns
from self_healing.core.failure import FailureType, Severity
from self_healing.core.history import History
from self_healing.core.incident import Incident
from self_healing.diagnosis import Facts, TextReading, text_findings
from self_healing.diagnosis.sources import rank_of, split_source
from self_healing.readers import Line
from self_healing.readers.log_text import Block

PATTERNS = discover_patterns("self_healing.patterns")


def root(text):
    return text_findings((Line(number, line) for number, line in enumerate(text.split("\n"), 1)), PATTERNS)[0]


@pytest.mark.parametrize(
    ("line", "source", "rest"),
    [
        ('[rank3]:   File "a.py"', "rank3", '  File "a.py"'),
        ("[0] [0] RuntimeError: x", "0", "RuntimeError: x"),
        ("[0]:", "", "[0]:"),
        ("(raylet) bus", "(raylet)", "bus"),
        ("(Worker pid=1, ip=10.0.0.1)   File", "(Worker pid=1, ip=10.0.0.1)", "  File"),
        ("3: loss", "3", "loss"),
        ("12:30: start", "", "12:30: start"),
        ("[2026-01-01 10:00:00,000] [INFO] go", "", "[2026-01-01 10:00:00,000] [INFO] go"),
        ("2026-01-01 10:00:00.977 [17/train/5 (pid 28)] [09c561ee-a44c]     x = 1", "17/train/5 (pid 28)", "    x = 1"),
    ],
)
def test_the_process_is_split_off(line, source, rest):
    assert split_source(line) == (source, rest)


@pytest.mark.parametrize(("source", "rank"), [("rank3", 3), ("7", 7), ("default1", 1), ("(raylet)", None), ("", None)])
def test_a_source_may_be_a_rank(source, rank):
    assert rank_of(source) == rank


def test_arguments_are_read_and_metrics_are_not_arguments():
    facts = Facts()
    facts.look(
        "Namespace(batch_size=64, lr=0.002, num_workers=8)\n"
        "max_length                     256\n"
        "{'loss': 1.2, 'grad_norm': 0.3, 'max_length': 999, 'learning_rate': 0.5}\n"
        "lr 0.0001\n"
    )
    assert (facts.key("batch"), facts.whole("batch")) == ("batch_size", 64)
    assert facts.whole("length") == 256
    assert facts.number("rate") == 0.002
    assert facts.whole("workers") == 8


def test_what_the_trainer_says_in_words_is_read():
    facts = Facts()
    facts.look(
        "[INFO|trainer.py:2409] >>   Instantaneous batch size per device = 16\n  Gradient Accumulation steps = 3\n"
    )
    assert facts.framework == "transformers"
    assert (facts.key("batch"), facts.whole("batch"), facts.whole("accumulation")) == (
        "per_device_train_batch_size",
        16,
        3,
    )


def test_the_fix_uses_the_name_that_was_printed():
    fixes = root("Namespace(batch_size=64)\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n").fix
    assert any(fix.startswith("Set batch_size: 32 (it is 64)") for fix in fixes)


def test_a_plainer_consequence_does_not_lead_in_a_live_run_either():
    text = (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15) ran for 600060 milliseconds before timing out."
    )
    incident = Incident(
        name="exited", failure=FailureType.CRASH, fine="crash", severity=Severity.ERROR, step=0, because="x", text=text
    )
    found = diagnose(incident, (), PATTERNS, History(), lambda _name, _error: None)
    assert found.leading is not None
    assert found.leading.name == "cublas-out-of-memory"
    weights = {h.name: h.weight for h in found.hypotheses}
    assert weights["collective-timeout"] > weights["cublas-out-of-memory"]


def test_what_a_line_says_again_is_heard_there_too():
    text = "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)\n"
    assert root(text + "RuntimeError: DataLoader worker (pid 15) is killed by signal: Killed. \n").fine == "oom_host"


def test_the_class_inside_the_wrapper_of_ray_is_read():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nray.exceptions.RayTaskError(OutOfMemoryError): ray::f()\n'
    assert root(text).fine == "oom_gpu"


def test_a_message_over_two_blocks_is_whole():
    reading = TextReading(PATTERNS)
    reading.feed(Block([1, 2], 'x\n  File "lib/wandb/sdk/lib/sock_client.py", line 2, in send'))
    reading.feed(Block([3], "BrokenPipeError: [Errno 32] Broken pipe"))
    assert reading.findings()[0].fine == "tracker_error"


def test_a_word_of_success_after_some_progress_is_believed():
    said = (
        "ERROR requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\n"
    )
    step = "{'loss': 1.5, 'epoch': 0.1}\n"
    assert root(said + step * 12 + "Training completed\n").severity == Severity.INFO
    assert root(said + step * 12).severity == Severity.ERROR


def test_a_few_nan_losses_are_no_success_either():
    assert root("{'loss': nan, 'epoch': 0.1}\n" * 10 + "Training completed\n").severity == Severity.ERROR


def test_a_bar_near_its_end_is_an_end():
    bar = " 99%|#########9| 19990/20000 [02:23<00:02,  2.17s/it]\n"
    assert text_findings([Line(1, bar)], PATTERNS) == []
