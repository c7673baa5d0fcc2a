"""Where a command runs: what stands before a program, and what a shell is given, hide nothing that starts a run elsewhere."""

from __future__ import annotations

import shlex
import sys

import pytest

from self_healing.cli.main import main
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.packages.running import Way, how_it_runs
from self_healing.preflight.subject import read_subject
from self_healing.preflight.subject.started import Where, program_of, where_run
from self_healing.preflight.surroundings.here import shares_our_packages
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools
from self_healing.preflight.training.processes import process_count

SHELL_FILES = {
    "submit.sh": "#!/bin/bash\nset -e\nif true; then\n  JOB=$(sbatch --parsable \\\n    job.sh)\nfi\n",
    "quoted.sh": 'echo "job: $(sbatch job.sh)"\n',
    "outer.sh": "bash submit.sh\n",
    "itself.sh": "bash itself.sh\n" * 200,
    "plain.sh": "# sbatch job.sh\nhf download org/model\naws s3 cp s3://a/b data\necho ssh\npython train.py --backend ray\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in {**SHELL_FILES, "train.py": "import torch\n"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "sbatch job.sh", "env A=b sbatch job.sh", "A=b /usr/bin/sbatch job.sh", "nohup srun python train.py",
        "time -f %e srun python train.py", "timeout -k 5 10m srun python train.py", "taskset -c 0 nice -n 5 sbatch job.sh",
        "bash -c 'sbatch job.sh'", "bash -lc 'cd x && A=b sbatch job.sh'", "sh -ec 'true; exec srun python train.py'",
        "bash submit.sh", "bash -x quoted.sh", "./submit.sh", "sh outer.sh", "bash -c 'bash outer.sh'", "su - me -c 'sbatch job.sh'",
        "bash -euo pipefail -c 'sbatch job.sh'", "bash -eo pipefail submit.sh", "python -m self_healing run -- sbatch job.sh",
        "uv run sbatch job.sh", "heal run -- sbatch job.sh",
    ],
)  # fmt: skip
def test_what_slurm_runs_is_seen_behind_what_stands_before_it(folder, line):
    assert where_run(shlex.split(line), folder) is Where.CLUSTER


@pytest.mark.parametrize(
    "line",
    [
        "A=b ssh host python train.py", "sudo docker run image python train.py", "sudo -u me -E docker run image python train.py",
        "uv run --with modal modal run train.py", "uvx modal run train.py", "python -m modal run train.py", "hf jobs uv run train.py",
        "env A=b hf jobs run image python train.py", "bash -c 'ssh host \"python train.py\"'", "eval 'ssh host python train.py'",
    ],
)  # fmt: skip
def test_what_other_machines_and_containers_run_is_seen_too(folder, line):
    assert where_run(shlex.split(line), folder) is Where.AWAY


@pytest.mark.parametrize(
    "line",
    [
        "python train.py", "env A=b python train.py", "sudo -u hf python train.py", "python train.py --backend ray", "bash plain.sh",
        "bash missing.sh", "bash itself.sh", "bash", "env", "make train", "uv run train.py", "hf download org/model", "torchrun --nproc_per_node 2 train.py",
        "python -m torch.distributed.run train.py", "bash -c", "bash -o", "env -u", "timeout", "bash -c 'command -v docker'",
    ],
)  # fmt: skip
def test_what_runs_here_or_cannot_be_known_runs_here(folder, line):
    assert where_run(shlex.split(line), folder) is Where.HERE


@pytest.mark.parametrize("words", [["env", "A=b"], ["A=b"], ["nohup", "env", "A=b"], ["bash", "-c"]])
def test_nothing_that_submits_is_started_by_a_dry_run(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    submits = tmp_path / "sbatch"
    submits.write_text("#!/bin/sh\ntouch submitted\n")
    submits.chmod(0o755)
    rest = [f"{submits} job.sh"] if words[-1] == "-c" else [str(submits), "job.sh"]
    main(["check", "--offline", "--steps", "2", "--", *words, *rest])
    assert "not run: dry-run: the command starts the run elsewhere" in capsys.readouterr().out
    assert not (tmp_path / "submitted").exists()


def test_everyone_who_asks_gets_the_same_answer(folder):
    def asked(line):
        subject = read_subject([], shlex.split(line), CheckOptions(), folder)
        tools = Tools(options=CheckOptions(), environ={}, cwd=folder, machine=Machine())
        way = how_it_runs(subject, subject.scripts[0]).way
        return (
            way,
            subject.starts_elsewhere,
            shares_our_packages(subject, tools),
            process_count(subject),
        )

    assert asked("env A=b python train.py") == (Way.HERE, False, True, 1)
    assert asked(f"env A=b {sys.executable} train.py") == (Way.HERE, False, True, 1)
    assert asked("env A=b /opt/other/bin/python train.py") == (Way.HERE, False, False, 1)
    assert asked("env A=b uv run train.py") == (Way.UV, False, False, None)
    assert asked("nohup srun python train.py") == (Way.ELSEWHERE, True, False, None)
    assert asked("sudo docker run image python train.py") == (Way.ELSEWHERE, True, False, None)


def test_a_header_that_is_not_read_elsewhere_is_not_held_against_a_script(folder):
    from .checked_scripts import checked, header

    text = header("torch>=2,<3") + "import numpy\nimport cv2\n"
    assert checked(folder, text, "import-not-in-header", argv=["docker", "run", "image", "python", "train.py"]) == []
    assert checked(folder, text, "import-not-in-header", argv=["uv", "run", "train.py"])


def test_a_program_is_what_stands_behind_its_prefixes():
    assert program_of(shlex.split("A=b sudo -u me env -u X C=d python -c 1")) == ("python", "-c", "1")
    assert program_of(["env"]) == ()
