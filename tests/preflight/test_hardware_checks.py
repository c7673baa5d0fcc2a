"""What a device cannot do: the page, the advice, the device that counts."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.hardware.check import HardwareCheck
from self_healing.preflight.hardware.devices import (
    DEVICES,
    device_of_driver,
    find_device,
    find_flavor,
    near_names,
)
from self_healing.preflight.hardware.target import target_of
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import known_checks, run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.here import ranks
from self_healing.preflight.tools import Tools
from self_healing.preflight.training import process_count

PAGE = (Path(__file__).parents[2] / "docs" / "incompatibilities.md").read_text()
HARDWARE = {name: cls for name, cls in known_checks().items() if issubclass(cls, HardwareCheck)}
NO_GPU = {"PATH": "/nowhere"}


def checked(folder, text, *, argv=(), environ=None, name="train.py", **options):
    if text:
        (folder / name).write_text(text)
    given = CheckOptions.model_validate({"offline": True, **options})
    tools = Tools(options=given, environ=NO_GPU if environ is None else environ, cwd=folder)
    return read_subject([name] if text else [], list(argv), given, folder), tools


def findings(folder, text, **more):
    subject, tools = checked(folder, text, **more)
    return [found for found in run_checks(subject, tools).findings if found.check in HARDWARE]


def machine(folder, rows, *, sleeps=0):
    """A machine whose driver answers so."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nsleep {sleeps}\ncat <<'END'\n{rows}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


@pytest.mark.parametrize("name", HARDWARE)
def test_the_page_has_the_row_of_each_check(name):
    cls = HARDWARE[name]
    assert f"| `{name}` | {cls.happens} | {cls.safe} | {cls.fast} | {cls.needs} |" in PAGE


def test_the_page_has_no_row_of_a_check_that_is_gone():
    told = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 6}
    assert told == set(HARDWARE)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_page_shows_each_device_as_the_table_has_it(device):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {device.name} | `{device.names[0]}`"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    has = (device.has_bf16, device.has_tf32, device.has_fp8, device.has_flash_attention_2, device.has_flash_attention_3)
    assert cells[2:] == [
        str(device.memory_gib or "host"),
        device.architecture,
        *("yes" if each else "no" for each in has),
    ]


def test_every_name_of_a_device_is_its_own():
    names = [name for device in DEVICES for name in device.names]
    assert len(names) == len(set(names))
    for device in DEVICES:
        assert all(find_device(name) is device and find_device(name.upper()) is device for name in device.names)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("T4", "T4"),
        ("nvidia l4", "L4"),
        ("A100_40GB", "A100 40 GB"),
        ("Tesla-V100", "Tesla V100 16 GB"),
        ("h200", "H200"),
    ],
)
def test_a_device_is_found_however_it_is_spelled(said, name):
    assert find_device(said).name == name


def test_a_gpu_nobody_knows_is_refused_with_a_near_name():
    assert near_names("a10gg")[0] == "a10g"
    with pytest.raises(ValueError, match="did you mean a10g"):
        CheckOptions.model_validate({"gpu": "a10gg"})


def test_flavors_of_jobs_have_a_device_and_a_count():
    assert [(find_flavor(name)[0].name, find_flavor(name)[1]) for name in ("t4-small", "a10g-largex4", "a100x8")] == [
        ("T4", 1), ("A10G", 4), ("A100 80 GB", 8),
    ]  # fmt: skip
    assert find_flavor("zero-gpu-of-tomorrow") is None


@pytest.mark.parametrize(
    ("driver", "memory", "capability", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.2, (8, 0), "A100 80 GB"), ("NVIDIA A100-PCIE-40GB", 39.4, (8, 0), "A100 40 GB"),
        ("Tesla T4", 14.8, (7, 5), "T4"), ("NVIDIA H200", 139.8, (9, 0), "H200"), ("NVIDIA GeForce RTX 4090", 23.6, (8, 9), "RTX 4090"),
        ("NVIDIA B300", 260.0, (10, 3), "NVIDIA B300"),
    ],
)  # fmt: skip
def test_the_name_of_a_driver_is_the_device_of_the_table(driver, memory, capability, name):
    found = device_of_driver(driver, memory, capability)
    assert (found.name, found.has_bf16) == (name, capability >= (8, 0))


def test_the_device_of_this_machine_is_asked_of_its_driver(tmp_path):
    environ = machine(tmp_path, "Tesla T4, 15360, 7.5, 535.104.05\nTesla T4, 15360, 7.5, 535.104.05")
    target = target_of(*checked(tmp_path, "", argv=["python"], environ=environ))
    assert (target.device.name, target.count, target.is_here) == ("T4", 2, True)
    hidden = target_of(*checked(tmp_path, "", argv=["python"], environ={**environ, "CUDA_VISIBLE_DEVICES": "1"}))
    assert hidden.count == 1
    assert target_of(*checked(tmp_path, "", argv=["python"], environ={**environ, "CUDA_VISIBLE_DEVICES": ""})) is None


def test_a_driver_that_hangs_or_babbles_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("self_healing.preflight.surroundings.driver.LONGEST_S", 0.2)
    environ = machine(tmp_path, "Tesla T4, 15360, 7.5, 535.104.05", sleeps=3)
    assert target_of(*checked(tmp_path, "", argv=["python"], environ=environ)) is None
    (tmp_path / "other").mkdir()
    environ = machine(tmp_path / "other", "NVIDIA-SMI has failed because it couldn't communicate with the driver")
    assert target_of(*checked(tmp_path, "", argv=["python"], environ=environ)) is None


def test_what_is_named_goes_before_the_flavor_and_that_before_this_machine(tmp_path):
    environ = machine(tmp_path, "NVIDIA L4, 23034, 8.9, 550.54.15")
    job = ["hf", "jobs", "run", "--flavor", "a10g-largex2", "image", "trl", "sft"]
    by_name = target_of(*checked(tmp_path, "", argv=job, environ=environ, gpu="h100"))
    by_flavor = target_of(*checked(tmp_path, "", argv=job, environ=environ))
    here = target_of(*checked(tmp_path, "", argv=["trl", "sft"], environ=environ))
    assert [str(each.device.name) for each in (by_name, by_flavor, here)] == ["H100 80 GB", "A10G", "L4"]
    assert [each.count for each in (by_name, by_flavor, here)] == [1, 2, 1]


def test_the_processes_of_a_launcher_are_the_gpus_that_take_part(tmp_path):
    (tmp_path / "train.py").write_text("")
    argv = ["torchrun", "--nproc_per_node", "4", "train.py"]
    assert target_of(*checked(tmp_path, "", argv=argv, gpu="a100")).count == 4


ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("line", "count", "each"),
    [
        ("deepspeed --num_gpus 8 train.py", 8, 8), ("deepspeed --num_gpus 8 --num_nodes 2 train.py", 16, 8),
        ("deepspeed --include localhost:0,1,2 train.py", 3, 3), ("python -m deepspeed.launcher.runner --num_gpus 4 train.py", 4, 4),
        ("torchrun --nnodes 2 --nproc_per_node 8 train.py", 16, 8), ("torchrun --nnodes 1:2 --nproc_per_node 8 train.py", None, 1),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", 8, 4), ("accelerate launch --config_file acc.yaml train.py", 8, 4),
        ("accelerate launch --config_file acc.yaml --num_processes 4 train.py", 4, 2), ("trl sft --num_processes 4", 4, 4),
        ("trl sft --accelerate_config acc.yaml", 8, 4), ("axolotl train ax.yml --num_processes 4", 4, 4),
        ("accelerate launch train.py --num_processes 8", None, 1), ("deepspeed train.py", None, 1),
        ("trl sft --config sft.yaml", 2, 2),
    ],
)  # fmt: skip
def test_all_checks_count_the_same_processes(tmp_path, line, count, each):
    for name, text in {
        "train.py": "",
        "acc.yaml": ACCELERATE,
        "ax.yml": "base_model: m\n",
        "sft.yaml": "num_processes: 2\n",
    }.items():
        (tmp_path / name).write_text(text)
    subject, tools = checked(tmp_path, "", argv=shlex.split(line), gpu="a100")
    assert (subject.processes, process_count(subject), ranks(subject)) == (count, count, each)
    assert (target_of(subject, tools).count, subject.gpus) == (count or 1, count or 1)


@pytest.mark.parametrize(
    "line",
    [
        "hf jobs uv run --flavor gpu-of-tomorrow train.py", "hf jobs uv run train.py",
        "ssh node python train.py", "docker run image python train.py", "sbatch --gpus 1 train.py",
    ],
)  # fmt: skip
def test_a_run_elsewhere_is_not_judged_by_the_gpu_that_is_here(tmp_path, line):
    (tmp_path / "train.py").write_text("")
    environ = machine(tmp_path, "Tesla T4, 15360, 7.5, 535.104.05")
    assert target_of(*checked(tmp_path, "", argv=shlex.split(line), environ=environ)) is None
    assert target_of(*checked(tmp_path, "", argv=shlex.split(line), environ=environ, gpu="l4")).device.name == "L4"


RISKY = """import torch
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("org/model-1B", attn_implementation="flash_attention_2")
args = TrainingArguments(output_dir="out", bf16=True, tf32=True, torch_compile=True)
"""


def test_a_machine_without_a_gpu_is_silent_about_devices(tmp_path):
    assert findings(tmp_path, RISKY) == []


def test_an_h100_can_do_all_of_it(tmp_path):
    assert findings(tmp_path, RISKY, gpu="h100") == []


def test_a_t4_cannot_and_each_is_told_with_its_line_and_a_way_out(tmp_path):
    found = findings(tmp_path, RISKY, gpu="t4")
    told = {(each.check, each.where.line) for each in found}
    assert told == {
        ("flash-attention-not-supported", 3), ("bf16-not-supported", 4), ("tf32-not-supported", 4), ("torch-compile-unreliable", 4),
    }  # fmt: skip
    assert all("Write " in each.fix and " needs " in each.fix for each in found)


@pytest.mark.parametrize("text", ["bf16=torch.cuda.is_bf16_supported()", "bf16=args.bf16", "bf16=False", "fp16=True"])
def test_what_only_the_program_knows_is_no_finding(tmp_path, text):
    assert (
        findings(tmp_path, f"from transformers import TrainingArguments\nTrainingArguments('o', {text})\n", gpu="t4")
        == []
    )


def test_what_the_command_says_goes_before_the_script(tmp_path):
    script = "from transformers import TrainingArguments\nTrainingArguments('o', bf16=True)\n"
    assert findings(tmp_path, script, argv=["python", "train.py", "--bf16", "false"], gpu="t4") == []


def test_the_default_of_trl_is_noted_and_is_no_problem(tmp_path):
    found = findings(tmp_path, "from trl import SFTConfig\nargs = SFTConfig(output_dir='o')\n", gpu="t4")
    assert [(each.check, each.severity) for each in found] == [("bf16-not-supported", Severity.INFO)]


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("test", "fails fast shows less"), ("first-run", "leave it until a run like this one has worked"), ("time-critical", "costs more time than a slow one"),
        ("cost-critical", "small model"), ("proven", "to keep the fast way"),
    ],
)  # fmt: skip
def test_what_a_run_is_for_decides_what_is_advised(tmp_path, scenario, words):
    script = "from transformers import TrainingArguments\nTrainingArguments('o', tf32=True)\n"
    (found,) = findings(tmp_path, script, gpu="t4", scenario=scenario)
    assert words in found.fix
    assert found.fix.startswith("Write no tf32 at all")


def test_a_package_that_this_machine_lacks_is_missed_only_where_it_runs_here(tmp_path):
    script = "from transformers import TrainingArguments\nTrainingArguments('o', optim='adamw_bnb_8bit')\n"
    assert findings(tmp_path, script, gpu="a10g") == []
    environ = machine(tmp_path, "NVIDIA L4, 23034, 8.9, 550.54.15")
    assert {each.check for each in findings(tmp_path, script, environ=environ)} == {"bitsandbytes-missing"}


def test_the_seeds_cautious_configuration_has_nothing_against_it(tmp_path):
    script = "from trl import SFTConfig\nargs = SFTConfig(output_dir='o', optim='adamw_torch', fp16=True)\n"
    for device in ("t4", "a10g", "a100", "h100"):
        assert findings(tmp_path, script, gpu=device) == []
