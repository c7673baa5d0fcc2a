"""How a script is run, whichever way a job is written down: a command, a spec, a script that submits it."""

from __future__ import annotations

import json

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.packages.running import Way, how_it_runs
from self_healing.preflight.subject import read_subject

TRAIN = "import trl\n"
SUBMIT = "from huggingface_hub import run_uv_job\nrun_uv_job('train.py', flavor='t4-small', {})\n"


def running_of(folder, name, *inputs, argv=()):
    subject = read_subject(list(inputs), list(argv), CheckOptions(offline=True), folder)
    (script,) = (each for each in subject.scripts if each.named == name)
    return how_it_runs(subject, script)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "added", "has_image"),
    [
        ({}, [], False),
        ({"dependencies": ["trl", "peft>=0.18"]}, ["trl", "peft>=0.18"], False),
        ({"with": ["trl"], "python": "3.12"}, ["trl"], False),
        ({"image": "acme/train:1"}, [], True),
    ],
)
def test_a_spec_runs_its_script_as_a_job(folder, spec, added, has_image):
    (folder / "job.json").write_text(json.dumps({"script": "./train.py", "flavor": "t4-small", **spec}))
    running = running_of(folder, "train.py", "job.json", "train.py") if not spec else running_of(folder, "./train.py", "job.json")  # fmt: skip
    assert (running.way, [str(each) for each in running.added], running.has_image) == (Way.JOB, added, has_image)
    assert running.python == spec.get("python", "")


def test_a_script_that_stands_in_a_spec_is_run_as_a_job(folder):
    (folder / "job.yaml").write_text("flavor: t4-small\nscript: |\n  import trl\n  print(trl)\n")
    assert running_of(folder, "job.yaml", "job.yaml").way is Way.JOB
    (folder / "job.json").write_text(json.dumps({"flavor": "t4-small", "script": "import trl\nprint(trl)\n"}))
    assert running_of(folder, "job.json (script)", "job.json").way is Way.JOB


@pytest.mark.parametrize(
    ("given", "added", "has_image"),
    [("", [], False), ("dependencies=['trl']", ["trl"], False), ("image='a/b'", [], True), ("**more()", [], True)],
)
def test_what_a_script_submits_is_a_job_and_the_script_itself_is_none(folder, given, added, has_image):
    (folder / "submit.py").write_text(SUBMIT.format(given))
    running = running_of(folder, "train.py", "submit.py")
    assert (running.way, [str(each) for each in running.added], running.has_image) == (Way.JOB, added, has_image)
    assert running_of(folder, "submit.py", "submit.py").way is Way.UNSAID
    assert running_of(folder, "submit.py", argv=["python", "submit.py"]).way is Way.HERE


@pytest.mark.parametrize(
    ("command", "way", "added", "has_image"),
    [
        ("hf jobs uv run --with trl,peft --flavor t4-small train.py", Way.JOB, ["trl", "peft"], False),
        ("hf jobs uv run --with-requirements r.txt train.py", Way.JOB, [], True),
        ("hf jobs uv run --image a/b -p 3.12 train.py", Way.JOB, [], True),
        ("hf jobs run python:3.12 python train.py", Way.JOB, [], True),
        ("uv run --with trl train.py", Way.UV, ["trl"], False),
        ("python train.py", Way.HERE, [], False),
    ],
)
def test_a_command_says_how_its_script_is_run(folder, command, way, added, has_image):
    running = running_of(folder, "train.py", argv=command.split())
    assert (running.way, [str(each) for each in running.added], running.has_image) == (way, added, has_image)
