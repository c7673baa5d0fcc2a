"""The fourteen errors that every guide to fine-tuning lists: a text as a run prints it, its cause and its fix."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from self_healing.core.discover import discover_patterns
from self_healing.core.failure import Severity
from self_healing.diagnosis import text_findings
from self_healing.readers import Line

PATTERNS = discover_patterns("self_healing.patterns")
AXOLOTL = (
    "[2026-03-04 10:00:00,000] [INFO] [axolotl.cli.train.do_train:42] config:\n"
    '{\n  "micro_batch_size": 6,\n  "gradient_accumulation_steps": 4,\n  "sequence_len": 4096,\n'
    '  "dataset_num_proc": 32,\n  "learning_rate": 0.0002\n}\n'
)
SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
axolotl.cli.train FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-04_10:03:11
  host      : node-4
  rank      : 2 (local_rank: 2)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


def trace(error: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/bin/axolotl", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/opt/venv/lib/python3.11/site-packages/transformers/trainer.py", line 2519, in _inner_training_loop\n'
        f"    tr_loss_step = self.training_step(model, inputs, num_items_in_batch)\n{error}\n"
    )


@dataclass(frozen=True)
class Row:
    """A text, the class of its cause, and what the answer must hold."""

    text: str
    fine: str
    fix: str
    also: str = ""


ROWS = {
    "killed": Row(
        AXOLOTL + SUMMARY.format(code=-9, traceback="Signal 9 (SIGKILL) received by PID 4711"),
        "oom_host", "dataset_num_proc: 16 (it is 32)", "killed_unknown",
    ),
    "bus error of DeepSpeed": Row(
        "[2026-03-04 10:00:00,001] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 812\n"
        "[2026-03-04 10:00:01,001] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -7\n",
        "oom_shm", "--shm-size", "version_mismatch",
    ),
    "CUDA out of memory": Row(
        AXOLOTL + trace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.15 GiB"),
        "oom_gpu", "micro_batch_size: 3 (it is 6) and gradient_accumulation_steps: 8 (it is 4)",
    ),
    "NCCL aborted": Row(trace("RuntimeError: NCCL communicator was aborted on rank 1."), "nccl_error", "NCCL_DEBUG=INFO"),
    "pad token": Row(
        AXOLOTL + trace(
            "ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as `pad_token`"
        ),
        "pad_token_missing", 'special_tokens: {pad_token: "<|endoftext|>"}',
    ),
    "DeepSpeed on one GPU": Row(
        trace("AttributeError: 'DummyOptim' object has no attribute 'step'"), "config_error", "Remove the deepspeed section",
    ),
    "reward module": Row(
        "[2026-03-04 10:00:00,000] [ERROR] [axolotl.prompt_strategies.load:51] unable to load strategy my_rewards.accuracy\n"
        + trace("TypeError: 'NoneType' object is not callable"),
        "config_error", 'python -c "import my_rewards"',
    ),
    "generations": Row(
        AXOLOTL + trace("ValueError: generation_batch_size (6) must be divisible by num_generations (4)."),
        "grpo_batch_config", "Make the generation batch 8 instead of 6",
    ),
    "weight must be 2-D": Row(trace("RuntimeError: 'weight' must be 2-D"), "fsdp_param_shape", "fsdp_version: 2"),
    "recomputation": Row(
        trace(
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved during the "
            "original forward and recomputation.\nNumber of tensors saved during forward: 30\n"
            "Number of tensors saved during recomputation: 9"
        ),
        "checkpoint_recompute", "use_reentrant: true",
    ),
    "bfloat16 through NumPy": Row(
        trace("TypeError: Got unsupported ScalarType BFloat16"), "version_mismatch", "fp16 or fp32",
    ),
    "chat template": Row(trace("ValueError: Content end boundary is before start boundary"), "config_error", "eos_token"),
    "Xet": Row(
        trace("RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status server error (502)"),
        "hub_xet", "HF_HUB_DISABLE_XET=1",
    ),
    "hang": Row(
        "{'loss': 1.31, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "[rank1]:[E304 10:11:12.131415161 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=812, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=2, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out.\n",
        "nccl_timeout", "async_prefetch: false",
    ),
}  # fmt: skip


def lines(text: str) -> list[Line]:
    return [Line(number, line) for number, line in enumerate(text.split("\n"), 1)]


def test_there_are_fourteen():
    assert len(ROWS) == 14


@pytest.mark.parametrize("name", ROWS)
def test_the_cause_is_found_and_the_fix_is_concrete(name):
    row = ROWS[name]
    found = text_findings(lines(row.text), PATTERNS)
    assert found, "nothing was found"
    root = found[0]
    assert root.fine == row.fine, root
    assert root.severity == Severity.ERROR
    assert any(row.fix in fix for fix in root.fix), root.fix
    assert root.because
    assert root.references
    assert not row.also or row.also in [other.fine for other in root.also_possible], root.also_possible


@pytest.mark.parametrize("name", ROWS)
def test_the_decisive_line_is_named(name):
    text = ROWS[name].text
    root = text_findings(lines(text), PATTERNS)[0]
    by_number = dict(enumerate(text.split("\n"), 1))
    assert root.line in by_number
    assert root.evidence
    for seen in root.evidence:
        assert seen.line is not None
        assert seen.text.strip(". ") in by_number[seen.line], "the evidence is not what stands in that line"


def test_the_other_reading_of_a_bus_error_says_how_to_tell_and_what_to_do():
    root = text_findings(lines(ROWS["bus error of DeepSpeed"].text), PATTERNS)[0]
    other = next(possible for possible in root.also_possible if possible.fine == "version_mismatch")
    assert other.confirm
    assert any("pip install -U deepspeed" in fix for fix in other.fix)


def test_the_fix_for_a_missing_pad_token_is_that_of_the_framework():
    assert (
        text_findings(lines(ROWS["pad token"].text), PATTERNS)[0]
        .fix[0]
        .startswith("Add to the configuration: special_tokens")
    )
    plain = ROWS["pad token"].text.removeprefix(AXOLOTL).replace("axolotl", "tool")
    assert text_findings(lines(plain), PATTERNS)[0].fix[0].startswith("Set tokenizer.pad_token")
