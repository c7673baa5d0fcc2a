"""Command lines: what is run, by which launcher, with which settings and variables."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from self_healing.core.errors import InputError
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import UNKNOWN, Kind, read_subject
from self_healing.preflight.subject.command import read_command
from self_healing.preflight.tools import Tools

COMMANDS = {
    "python train.py --lr 1": ("train.py", {"lr": 1}, None),
    "python3 -u train.py": ("train.py", {}, None),
    "torchrun --standalone --nproc_per_node=4 train.py --lr 1": ("train.py", {"lr": 1}, 4),
    "torchrun --nnodes 2 --nproc-per-node 8 -m pkg.train --lr 1": (None, {"lr": 1}, 16),
    "python -m torch.distributed.run --nproc_per_node 2 train.py --bf16": ("train.py", {"bf16": True}, 2),
    "accelerate launch --multi_gpu --num_processes 4 train.py --x -1": ("train.py", {"x": -1}, 4),
    "deepspeed --num_gpus 8 train.py --deepspeed ds.json": ("train.py", {"deepspeed": "ds.json"}, 8),
    "uv run --with trl train.py --lr=1e-4": ("train.py", {"lr": 1e-4}, None),
    "uv run https://example.com/train.py --lr 1": ("https://example.com/train.py", {"lr": 1}, None),
    "env -u X A=b CUDA_VISIBLE_DEVICES=0 python train.py c=1": ("train.py", {"c": 1}, None),
    "trl sft --model_name_or_path org/m": (None, {"model_name_or_path": "org/m"}, None),
    "python train.py --report_to wandb trackio --lr 1": (
        "train.py",
        {"report_to": ["wandb", "trackio"], "lr": 1},
        None,
    ),
    "python train.py training.lr=1e-3 +a.b=2 ~c": ("train.py", {"training.lr": 1e-3, "a.b": 2}, None),
    "heal run --max-restarts 3 -- A=b torchrun --nproc_per_node 2 train.py --lr 1": ("train.py", {"lr": 1}, 2),
    "python": (None, {}, None),
    "": (None, {}, None),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_taken_apart(line):
    command = read_command(shlex.split(line), Path())
    script, flags, processes = COMMANDS[line]
    assert (command.script, command.processes) == (script, processes)
    assert {flag.name: flag.value for flag in command.flags} == flags


def test_what_is_set_before_the_program_is_its_environment(tmp_path):
    (tmp_path / "train.py").write_text('import os\nAutoModel.from_pretrained(os.environ["MODEL"])\n')
    argv = shlex.split("env MODEL=org/m X=1 python train.py")
    subject = read_subject([], argv, CheckOptions(), tmp_path)
    assert subject.command.environ == {"MODEL": "org/m", "X": "1"}
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.MODEL, "org/m")]


def test_configs_of_launchers_and_trainers_are_read(tmp_path):
    (tmp_path / "acc.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 2\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ax.yml").write_text("base_model: org/m\nsequence_len: 8\n")
    launched = read_subject(
        [], shlex.split("accelerate launch --config_file acc.yaml train.py"), CheckOptions(), tmp_path
    )
    assert [config.framework for config in launched.configs] == ["accelerate"]
    for line in (
        "axolotl train ax.yml --lr 1",
        "accelerate launch -m axolotl.cli.train ax.yml",
        "python -m axolotl.cli.train ax.yml",
    ):
        subject = read_subject([], shlex.split(line), CheckOptions(), tmp_path)
        assert [each.name for each in subject.references] == ["org/m"], line


def test_a_config_of_the_command_fills_the_arguments_of_the_script(tmp_path):
    (tmp_path / "c.yaml").write_text("model_name_or_path: org/m\ndataset_name: org/d\nlearning_rate: 1.0e-4\n")
    (tmp_path / "train.py").write_text(
        "from trl import TrlParser, ScriptArguments, SFTConfig\n"
        "s, t = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()\nload_dataset(s.dataset_name, split='x')\n"
    )
    argv = shlex.split("python train.py --config c.yaml --learning_rate 2e-4")
    subject = read_subject([], argv, CheckOptions(), tmp_path)
    assert subject.number("learning_rate") == 2e-4
    assert ("org/d", "x") in {(each.name, each.split) for each in subject.references}


def test_a_module_is_read_where_it_lies_here(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("SFTConfig(learning_rate=1)\n")
    subject = read_subject([], ["python", "-m", "pkg.train"], CheckOptions(), tmp_path)
    assert (subject.scripts[0].named, subject.number("learning_rate")) == ("pkg/train.py", 1)
    assert read_subject([], ["python", "-m", "elsewhere.train"], CheckOptions(), tmp_path).scripts == ()


def test_a_sweep_gives_no_single_value(tmp_path):
    (tmp_path / "train.py").write_text("")
    subject = read_subject([], shlex.split("python train.py -m lr=1,2 wd=3"), CheckOptions(), tmp_path)
    assert (subject.setting("learning_rate").value, subject.number("weight_decay")) == (UNKNOWN, 3)


def test_a_choice_of_hydra_is_no_name_of_a_model(tmp_path):
    (tmp_path / "train.py").write_text("")
    subject = read_subject([], shlex.split("python train.py model=small dataset_name=en"), CheckOptions(), tmp_path)
    assert subject.references == ()


def test_a_switch_with_no_before_it_is_off(tmp_path):
    (tmp_path / "train.py").write_text("")
    subject = read_subject([], shlex.split("python train.py --no_bf16 --fp16"), CheckOptions(), tmp_path)
    assert (subject.setting("bf16").value, subject.is_on("fp16")) == (False, True)


def test_an_address_is_a_reference_and_nothing_is_fetched(tmp_path):
    subject = read_subject([], ["uv", "run", "https://example.com/train.py"], CheckOptions(), tmp_path)
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.URL, "https://example.com/train.py")]


ELSEWHERE = (
    "hf jobs run image python /app/train.py {}",
    "hf jobs uv run -v ./src:/app /app/train.py {}",
    "docker run --gpus all -v /data:/data image python train.py {}",
    "sudo docker run image python train.py {}",
    "ssh host python train.py {}",
    "ssh host 'cd work && python train.py {}'",
    "ssh host 'cd work && python train.py {} 2>&1 | tee out.log'",
    "hf jobs run image bash -c 'pip install trl && python train.py {}'",
    "A=b sbatch --wrap 'srun python train.py {}'",
)


@pytest.mark.parametrize("line", ELSEWHERE)
def test_a_file_that_is_where_the_command_runs_is_not_asked_for_here(tmp_path, line):
    """What the command itself says is read, and what could not be is told."""
    argv = shlex.split(line.format("--config /etc/mine.yaml --learning_rate 1"))
    options = CheckOptions(offline=True, select=("number-is-text",))
    subject = read_subject([], argv, options, tmp_path)
    script = "/app/train.py" if "/app" in line else "train.py"
    assert subject.starts_elsewhere
    assert (subject.number("learning_rate"), set(subject.left_out)) == (1, {"/etc/mine.yaml", script})
    report = run_checks(subject, Tools(options=options, environ={}, cwd=tmp_path))
    told = [each.because for each in report.not_run if each.check == "reading"]
    assert sorted(each.partition(":")[0] for each in told) == sorted(subject.left_out)


@pytest.mark.parametrize("line", [line for line in ELSEWHERE if "/app" not in line])
def test_a_file_that_is_here_is_read_wherever_the_command_runs(tmp_path, line):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mine.yaml").write_text("weight_decay: 0.1\n")
    subject = read_subject([], shlex.split(line.format("--config mine.yaml")), CheckOptions(), tmp_path)
    assert ([script.named for script in subject.scripts], subject.number("weight_decay")) == (["train.py"], 0.1)
    assert subject.left_out == ()


@pytest.mark.parametrize("line", ["python trian.py", "hf jobs uv run trian.py", "bash -c 'python trian.py'"])
def test_a_script_that_is_to_be_here_and_is_not_is_an_error(tmp_path, line):
    with pytest.raises(InputError, match=r"^trian\.py: there is no such file"):
        read_subject([], shlex.split(line), CheckOptions(), tmp_path)


@pytest.mark.parametrize("line", ELSEWHERE)
@pytest.mark.parametrize("check", ["missing-path", "resume-from-nothing"])
def test_paths_of_a_machine_that_is_not_this_one_are_not_looked_for(tmp_path, line, check):
    text = (
        "from trl import *\nload_dataset('json', data_files='/data/a.jsonl')\nt = SFTTrainer('/models/m', args=SFTConfig('/out'))\n"
        "t.train(resume_from_checkpoint='/out/checkpoint-5')\nt.train(resume_from_checkpoint=True)\n"
    )
    (tmp_path / "train.py").write_text(text)
    options = CheckOptions(offline=True, select=(check,))

    def found(argv):
        subject = read_subject(["train.py"], argv, options, tmp_path)
        return run_checks(subject, Tools(options=options, environ={}, cwd=tmp_path)).findings

    assert (
        found(shlex.split(line.format("--resume_from_checkpoint /out/checkpoint-9 --model_name_or_path /models/m")))
        == []
    )
    assert found(["python", "train.py"]), "here it is amiss"
