"""A training on several GPUs, or on a machine that is not here: what shares the model is counted, or asked for."""

from __future__ import annotations

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.hardware.devices import FLAVORS, device_of_driver, find_flavor

from .test_hardware_memory import checked

BIG = """from trl import SFTConfig, SFTTrainer
SFTTrainer(model="meta-llama/Llama-3.1-8B", args=SFTConfig("o", per_device_train_batch_size=1, max_length=512{more})).train()
"""
ZERO_3 = {"zero_optimization": {"stage": 3}}
FSDP = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("deepspeed --num_gpus 8 train.py", ", deepspeed='ds.json'"),
        ("accelerate launch --config_file fsdp.yaml train.py", ""),
        ("torchrun --nnodes 8 --nproc_per_node 1 train.py", ", deepspeed='ds.json'"),
    ],
)
def test_a_model_that_several_gpus_share_is_not_put_on_one(tmp_path, line, more):
    files = {"train.py": BIG.format(more=more), "ds.json": ZERO_3, "fsdp.yaml": FSDP}
    report = checked(tmp_path, files, argv=line.split(), gpu="a100-80")
    assert (report.findings, report.not_run) == ([], [])


def test_how_many_share_it_is_asked_for_where_a_launcher_takes_what_is_there(tmp_path):
    files = {"train.py": BIG.format(more=", deepspeed='ds.json'"), "ds.json": ZERO_3}
    report = checked(tmp_path, files, argv=["deepspeed", "train.py"], gpu="a100-80")
    assert report.findings == []
    assert ["--gpus" in each.because for each in report.not_run] == [True]
    alone = checked(tmp_path, files, argv=["deepspeed", "--num_gpus", "1", "train.py"], gpu="a100-80")
    assert [each.severity for each in alone.findings] == [Severity.ERROR]


def test_a_job_on_an_unknown_machine_is_not_estimated(tmp_path):
    files = {"train.py": BIG.format(more="")}
    report = checked(tmp_path, files, argv="hf jobs uv run --flavor gpu-of-tomorrow train.py".split())
    assert report.findings == []
    assert ["it runs elsewhere" in each.because for each in report.not_run] == [True]


def test_every_flavor_of_a_job_has_a_device():
    assert [name for name in FLAVORS if find_flavor(name) is None] == []
    device, count = find_flavor("rtx-pro-6000x4")
    assert (device.name, device.architecture, count) == ("RTX PRO 6000", "Blackwell", 4)


@pytest.mark.parametrize(
    ("said", "memory_gib", "name"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.2, "RTX PRO 6000"), ("NVIDIA B200", 176.4, "B200"),
        ("NVIDIA GB200", 180.0, "NVIDIA GB200"), ("NVIDIA RTX A6000", 47.3, "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", 47.3, "NVIDIA RTX 6000 Ada Generation"),
    ],
)  # fmt: skip
def test_what_the_driver_calls_a_device_is_that_device_and_no_other(said, memory_gib, name):
    assert device_of_driver(said, memory_gib, (12, 0)).name == name


def test_completions_are_as_long_by_default_as_the_installed_trl_has_them(tmp_path):
    from trl import GRPOConfig

    longest = GRPOConfig.__dataclass_fields__["max_completion_length"].default
    script = 'from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(model="org/m-8B", reward_funcs=f, args=GRPOConfig("o")).train()\n'
    found = checked(tmp_path, {"train.py": script}, "train.py", gpu="t4", select=("memory-too-small", "odd-sampling"))
    told = {each.check: each.message for each in found.findings}
    assert f"rows of {512 + longest} tokens" in told["memory-too-small"]
    assert f"cut at {longest} tokens" in told["odd-sampling"]
