"""Every pattern row explains its own samples best, and leaves its neighbours' alone."""

from __future__ import annotations

import builtins
import importlib
import re
import time

import pytest

from self_healing.core.cause import Evidence, Pattern
from self_healing.core.discover import discover_patterns, module_names
from self_healing.core.failure import FINE_CLASSES

PACKAGE = "self_healing.patterns"
ROWS = discover_patterns(PACKAGE)
BY_NAME = {row.name: row for row in ROWS}
MODULES = [importlib.import_module(f"{PACKAGE}.{name}") for name in module_names(PACKAGE)]
RIVALS = {pair for module in MODULES for pair in getattr(module, "RIVALS", ())}
"""Pairs (less likely row, more likely row) that share a sample, declared beside the rows."""

STEP_TIMES_S = (0.01, 1.0, 60.0)
RAISED = re.compile(r"((?:\w+\.)*_?[A-Z]\w*): ?(.*)", re.DOTALL)
FORBIDDEN_SYNTAX = re.compile(r"\(\?(?:[=!>]|<[=!]|P=|\()|\\[1-9]|[*+?}]\+")

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)

Reading = tuple[str, tuple[str, ...], str]


def bases_of(name: str) -> tuple[str, ...]:
    builtin = getattr(builtins, name.rpartition(".")[2], None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        return tuple(f"builtins.{base.__name__}" for base in builtin.__mro__[1:-1])
    return ("builtins.Exception", "builtins.BaseException")


def readings(sample: str) -> list[Reading]:
    """Return the ways a sample can reach a pattern: as a line of output and, where it is one, as an exception."""
    found: list[Reading] = [("", (), sample)]
    raised = RAISED.fullmatch(sample)
    if raised is not None:
        found.append((raised[1], bases_of(raised[1]), raised[2]))
    return found


def matching(reading: Reading) -> dict[str, Evidence]:
    return {row.name: found for row in ROWS if (found := row.evidence(*reading)) is not None}


def own_readings(row: Pattern, sample: str) -> list[Reading]:
    """Leave out the line of output for rows that ask for a class: a line has none."""
    return [reading for reading in readings(sample) if reading[0] or not row.exception]


def test_there_are_enough_families() -> None:
    assert len(MODULES) >= 13
    assert len(ROWS) >= 25


@each_row
def test_a_row_is_complete(row: Pattern) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.name)
    assert row.says.endswith(".")
    assert "\n" not in row.says
    assert row.fine in FINE_CLASSES
    assert row.text or row.exception
    assert 0 < row.weight <= 1
    assert row.matches
    assert row.but_not
    assert row.fixes
    assert row.source


@each_row
def test_the_expression_runs_in_linear_time(row: Pattern) -> None:
    re.compile(row.text)
    assert not FORBIDDEN_SYNTAX.search(row.text), f"{row.name}: look-around and back-references are not linear"
    hostile = [text for sample in row.matches for text in (sample[:-1] * 500, sample[: len(sample) // 2] * 1000)]
    started = time.perf_counter()
    for text in (*hostile, "a" * 100_000, "1 " * 50_000):
        row.evidence("builtins.RuntimeError", (), text)
    assert time.perf_counter() - started < 2.0


@each_row
def test_a_row_matches_its_own_samples(row: Pattern) -> None:
    for sample in row.matches:
        ways = own_readings(row, sample)
        assert ways, f"{row.name}: {sample!r} is not written as an exception, but the row asks for a class"
        for reading in ways:
            evidence = row.evidence(*reading)
            assert evidence is not None, f"{row.name} does not match {reading}"
            assert evidence.weight == row.weight
            assert evidence.found


@each_row
def test_nobody_else_explains_a_sample_better(row: Pattern) -> None:
    for reading in (reading for sample in row.matches for reading in own_readings(row, sample)):
        stealing = [
            name
            for name, found in matching(reading).items()
            if name != row.name and (row.name, name) not in RIVALS and found.weight >= row.weight
        ]
        assert not stealing, f"{stealing} take {reading} from {row.name}: narrow them, or declare RIVALS in the file"


@each_row
def test_texts_that_only_look_alike_are_left_alone(row: Pattern) -> None:
    for text in row.but_not:
        for reading in readings(text):
            assert row.evidence(*reading) is None, f"{row.name} matches {reading}"


@pytest.mark.parametrize(("less", "more"), sorted(RIVALS))
def test_rivals_really_share_a_sample(less: str, more: str) -> None:
    loser, winner = BY_NAME[less], BY_NAME[more]
    assert loser.weight < winner.weight
    assert any(winner.evidence(*reading) for sample in loser.matches for reading in readings(sample))


@each_row
def test_the_ladder_ends_with_a_stop_and_is_tried_in_the_order_written(row: Pattern) -> None:
    assert row.remedy
    assert row.remedy[-1].is_final
    assert not any(rung.is_final for rung in row.remedy[:-1])
    for step_time_s in STEP_TIMES_S:
        index = [
            sum(action.assumed_cost_s(step_time_s) for action in rung.actions) / rung.success
            for rung in row.remedy[:-1]
        ]
        assert index == sorted(index), f"{row.name} at {step_time_s} s a step: {index}"


def test_bare_words_decide_nothing() -> None:
    for text in ("shape", "dimension", "index", "api", "network", "timeout", "connection", "memory", "disk", "token"):
        for name in ("RuntimeError", "ValueError", "IndexError", "KeyError"):
            assert not matching((f"builtins.{name}", bases_of(name), f"something about {text} went wrong"))


def test_a_healthy_log_matches_nothing() -> None:
    log = "\n".join(
        f"{{'loss': {2.5 - step / 1000}, 'grad_norm': 1.4, 'learning_rate': 1e-05, 'epoch': {step / 1000}}}"
        for step in range(500)
    )
    assert not matching(("", (), f"***** Running training *****\n{log}\nTraining completed."))


CAUSES = {
    "gpu-out-of-memory": "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "disk-full": "OSError: [Errno 28] No space left on device: 'out/checkpoint-40/optimizer.pt'",
    "gpu-failed": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "shapes-do-not-fit": "[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)",
    "argument-unknown": "[rank0]: TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'packing_size'",
    "module-missing": "ModuleNotFoundError: No module named 'einops'",
    "hub-access-denied": "OSError: You are trying to access a gated repo.",
}
ECHOES = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error",
    "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15)",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:34567",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1203 got signal: 15",
    "  exitcode  : -15 (pid: 4117)\n  traceback : Signal 15 (SIGTERM) received by PID 4117",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n  exitcode  : 1 (pid: 78)",
    "slurmstepd: error: *** STEP 901.0 ON gpu03 CANCELLED AT 2026-02-03T11:12:13 ***",
    "srun: error: node03: task 5: Exited with exit code 1",
)
"""What other ranks, launchers and schedulers print when one process has failed."""


@pytest.mark.parametrize("echo", ECHOES, ids=range(len(ECHOES)))
@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_weighs_more_than_what_it_drags_down(cause: str, echo: str) -> None:
    for text in (f"{CAUSES[cause]}\n{echo}", f"{echo}\n{CAUSES[cause]}"):
        found = matching(("", (), text))
        assert max(found, key=lambda name: found[name].weight) == cause


@pytest.mark.parametrize(
    "line",
    [
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint and are newly initialized",
        "You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.",
        "Token indices sequence length is longer than the specified maximum sequence length for this model (612 > 512).",
        (
            "Xet Storage is enabled for this repo, but the 'hf_xet' package is not installed. Falling back to regular HTTP download. "
            "For better performance, install the package with: `pip install huggingface_hub[hf_xet]` or `pip install hf_xet`"
        ),
        "FutureWarning: You are using `torch.load` with `weights_only=False`; we recommend you start setting `weights_only=True`",
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
        "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.",
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism",
        "Epoch 1: val_loss improved from inf to 0.69315, saving model to best.keras",
        "best val loss: inf, patience 3",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1613] Created device /device:GPU:0 with 14626 MB memory",
        "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'",
        "successful NUMA node read from SysFS had negative value (-1), but there must be at least one NUMA node",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
        "NCCL INFO NET/IB : No device found.",
        "NCCL INFO comm 0x7f rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
        "[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
        "UserWarning: Was asked to gather along dimension 0, but all input tensors were scalars",
        "Reducer buckets have been rebuilt in this iteration.",
        "wandb: Run data is saved locally in ./wandb/run-20260101_000000-abc",
        "wandb: Waiting for W&B process to finish... (success).",
        "The attention mask is not set and cannot be inferred from input because pad token is same as eos token.",
        "Setting `pad_token_id` to `eos_token_id`:2 for open-end generation.",
        "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.",
        "{'loss': 0.0, 'grad_norm': 0.31, 'reward': 0.9, 'reward_std': 0.2, 'kl': 0.0, 'epoch': 0.0}",
        "Process finished with exit code 0",
        "DeprecationWarning: `tokenizer` is deprecated and will be removed in version 5.0.0",
        "Flash Attention 2 is not available, using sdpa",
        "UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared object file'",
        "apex is not installed, using torch.optim",
        "Retrying in 1s [Retry 1/5].",
    ],
)
def test_what_healthy_runs_print_decides_nothing(line: str) -> None:
    decided = {name: found.weight for name, found in matching(("", (), line)).items() if found.weight >= 0.5}
    assert not decided
