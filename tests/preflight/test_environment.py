"""Checks of this machine: real files, a real port, a real limit; and silence where the run is for another one."""

from __future__ import annotations

import os
import re
import shlex
import socket
import time

import psutil
import pytest

from self_healing.preflight.hardware.present import host_memory_gib
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.here import GIB, model_bytes
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools
from self_healing.snapshots import budget


@pytest.fixture
def check(tmp_path):
    def checked(name, command, *, environ=None, machine=None, **options):
        chosen = CheckOptions.model_validate({"offline": True, **options, "select": (name,)})
        tools = Tools(options=chosen, environ=environ or {}, cwd=tmp_path, machine=Machine(machine))
        report = run_checks(read_subject([], shlex.split(command), chosen, tmp_path), tools)
        assert report.not_run == []
        return [(str(found.severity), found.message, found.fix) for found in report.findings]

    return checked


def test_what_a_machine_says_of_itself_can_be_true(tmp_path):
    machine = Machine()
    assert machine.free_bytes(tmp_path) > 0
    assert machine.memory_bytes > 2**20
    assert machine.open_files >= 20
    assert abs(machine.now_s - time.time()) < 5
    assert machine.version("pydantic")[0].isdigit()
    assert "typing-extensions" in {each.name for each in machine.needs("pydantic")}
    assert machine.needs("no-distribution-of-that-name") == ()
    assert not machine.can_import("no_module_of_that_name")


@pytest.mark.parametrize(
    ("installed", "severity"), [("2.21.5", "warning"), ("2.28.3", "info"), ("2.27.5.post1", "info")]
)
def test_an_older_nccl_than_torchs_is_a_warning_and_a_newer_one_a_remark(check, installed, severity):
    facts = {"gpus": ["NVIDIA H100"], "needs": {"torch": ["sympy", "nvidia-nccl-cu12==2.27.5"]}, "packages": {"torch": "2.9.0", "nvidia-nccl-cu12": installed}}  # fmt: skip
    [(how, _, fix)] = check("nccl-version-differs", "torchrun --nproc_per_node 2 -m sft", machine=facts)
    assert (how, fix) == (severity, "pip install nvidia-nccl-cu12==2.27.5")


def test_in_a_container_its_own_limit_is_the_memory_that_there_is(check, tmp_path, monkeypatch):
    for name, text in {
        "memory.max": GIB,
        "memory.current": 3 * GIB // 4,
        "memory.stat": f"anon 9\ninactive_file {GIB // 4}\n",
    }.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(budget, "CGROUP", tmp_path)
    assert (Machine().memory_bytes, host_memory_gib()) == (GIB // 2, 1.0)
    [(_, message, fix)] = check("host-memory-small", "python -m sft --dataloader_num_workers 8")
    assert ("512 MiB are free" in message, "--dataloader_num_workers 0" in fix) == (True, True)
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory_gib() == psutil.virtual_memory().total / GIB, "without a limit it is the machine's"


def test_the_older_kind_of_control_group_is_read_as_well(tmp_path):
    (tmp_path / "memory").mkdir()
    for name, text in {
        "limit_in_bytes": 2**30,
        "usage_in_bytes": 2**29,
        "stat": "inactive_file 1\ntotal_inactive_file 1024",
    }.items():
        (tmp_path / "memory" / f"memory.{name}").write_text(str(text))
    assert (budget.free_memory(tmp_path), budget.whole_memory(tmp_path)) == (2**29 + 1024, 2**30)


@pytest.mark.parametrize(
    ("driver", "torch", "index"),
    [
        ((12, 2), "2.6.0+cpu", "whl/cu121"), ((12, 0), "2.6.0+cpu", "whl/cu118"), ((12, 8), "2.9.0+cu130", "whl/cu128"),
        ((13, 2), "2.6.0+cpu", "whl/cu130"), ((11, 4), "2.6.0+cu126", "whl/cu118"), ((10, 2), "2.6.0+cu126", "Update the driver:"),
        (None, "2.6.0+cpu", "whl/cu126"),
    ],
)  # fmt: skip
def test_the_build_of_torch_that_is_proposed_exists_and_runs_with_the_driver(check, driver, torch, index):
    facts = {"gpus": ["NVIDIA A100-SXM4-40GB"], "driver_cuda": driver, "packages": {"torch": torch}}
    [(_, _, fix)] = check("torch-unfit-for-gpu", "python -m sft", machine=facts)
    assert re.search(rf"{re.escape(index)}(\s|$)", fix), fix


def test_a_port_that_somebody_listens_at_is_taken_and_another_is_offered(check):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        [(severity, message, fix)] = check("port-taken", f"torchrun --master_port {port} -m sft")
        by_variable = check("port-taken", "torchrun -m sft", environ={"MASTER_PORT": str(port)})
    assert severity == "error"
    assert str(port) in message
    offered = int(fix.split()[2])
    assert offered != port
    assert not Machine().is_port_taken(offered)
    assert len(by_variable) == 1
    assert check("port-taken", f"torchrun --master_port {port} -m sft") == []


def test_checkpoints_are_counted_and_weighed_by_the_folder_of_the_model(check, tmp_path):
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "model.safetensors").open("wb") as file:
        file.truncate(2 * GIB)  # sparse: it takes no room
    command = "python -m sft --model_name_or_path model --output_dir out --max_steps 1000 --save_steps 100"
    [(severity, message, fix)] = check("disk-too-small", command, machine={"free_bytes": 50 * GIB})
    assert (severity, message.split(" go to")[0]) == ("error", "10 checkpoints of 6.0 GiB")
    assert "--save_total_limit 7" in fix  # 8 fit, and one more is written before the oldest goes
    assert check("disk-too-small", f"{command} --save_total_limit 7", machine={"free_bytes": 50 * GIB}) == []
    assert check("disk-too-small", f"{command} --save_only_model true", machine={"free_bytes": 50 * GIB}) == []
    assert check("disk-too-small", command, machine={"free_bytes": 60 * GIB}) == []
    assert len(check("disk-too-small", f"{command} --save_total_limit 8", machine={"free_bytes": 50 * GIB})) == 1


@pytest.mark.parametrize(
    ("name", "size"), [("org/model-7B", 14e9), ("org/SmolLM2-135M", 0.27e9), ("org/v2-model", None), ("org/4bit", None)]
)
def test_the_size_of_a_model_is_read_from_its_name_where_it_says_one(name, size, tmp_path):
    subject = read_subject([], ["python", "-m", "sft", "--model_name_or_path", name], CheckOptions(), tmp_path)
    found = model_bytes(subject, Tools(cwd=tmp_path))
    assert found == (None if size is None else (size, False))


def test_an_output_folder_below_a_file_cannot_be_made(check, tmp_path):
    (tmp_path / "runs").write_text("")
    [(severity, message, _)] = check("output-not-writable", "python -m sft --output_dir runs/one")
    assert severity == "error"
    assert "is a file" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_of_somebody_else_cannot_be_written_to(check, tmp_path):
    (tmp_path / "runs").mkdir(mode=0o500)
    assert len(check("output-not-writable", "python -m sft --output_dir runs/one")) == 1


def test_files_from_the_future_mean_that_the_clock_is_behind(check, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint-5").mkdir()
    assert check("clock-wrong", "python -m sft --output_dir out") == []
    future = time.time() + 40 * 86_400
    os.utime(tmp_path / "out" / "checkpoint-5", (future, future))
    [(severity, message, _)] = check("clock-wrong", "python -m sft --output_dir out")
    assert severity == "warning"
    assert "40 days" in message


def test_logins_are_found_where_the_libraries_look_for_them(check, tmp_path):
    wandb, hub = "python -m sft --report_to wandb", "python -m sft --push_to_hub true"
    home = {"HOME": str(tmp_path)}
    assert [found[0] for found in check("wandb-not-logged-in", wandb, environ=home)] == ["error"]
    assert [found[0] for found in check("hub-token-missing", hub, environ=home)] == ["error"]
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password x\n")
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("hf_x")
    assert check("wandb-not-logged-in", wandb, environ=home) == []
    assert check("hub-token-missing", hub, environ=home) == []
    own_server = {**home, "WANDB_BASE_URL": "https://wandb.example.org"}
    assert len(check("wandb-not-logged-in", wandb, environ=own_server)) == 1


def test_a_script_without_a_command_may_run_elsewhere_so_a_missing_login_is_only_noted(tmp_path):
    (tmp_path / "config.yaml").write_text("report_to: wandb\n")
    options = CheckOptions(select=("wandb-not-logged-in",))
    tools = Tools(options=options, environ={}, cwd=tmp_path)
    report = run_checks(read_subject(["config.yaml"], [], options, tmp_path), tools)
    assert [str(found.severity) for found in report.findings] == ["info"]
    assert report.exit_code(strict=False) == 0


@pytest.mark.parametrize(
    ("command", "gpu", "gpus", "is_here"),
    [
        ("python -m sft", None, [], True),
        ("python -m sft", "cpu", [], True),
        ("python -m sft", "t4", [], False),
        ("python -m sft", "t4", ["Tesla T4"], True),
        ("python -m sft", "a100-80", ["NVIDIA A100-SXM4-80GB"], True),
        ("python -m sft", "l4", ["NVIDIA L40S"], False),
        ("python -m sft", "a100-40", ["NVIDIA A100-SXM4-80GB"], False),
        ("python -m sft", "rtx-4090", ["NVIDIA RTX A6000"], False),
        ("python -m sft", "rtx-4090", ["NVIDIA GeForce RTX 4090"], True),
        ("python -m sft", "rtx4090", ["NVIDIA GeForce RTX 4090"], True),
        ("python -m sft", "a10g", ["NVIDIA A10G"], True),
        ("python -m sft", "v100-32", ["Tesla V100-SXM2-32GB"], True),
        ("python -m sft", "h100", ["NVIDIA H100 80GB HBM3"], True),
        ("hf jobs uv run train.yaml", None, [], False),
        ("docker run image python -m sft", None, [], False),
    ],
)
def test_nothing_is_said_of_this_machine_where_the_run_is_for_another(command, gpu, gpus, is_here, check):
    small = {"gpus": gpus, "shm_bytes": 2**26, "open_files": 256, "memory_bytes": GIB}
    for name in ("shared-memory-small", "open-file-limit-low", "host-memory-small"):
        words = f"{command} --dataloader_num_workers 16"
        assert bool(check(name, words, machine=small, gpu=gpu)) is is_here, name
