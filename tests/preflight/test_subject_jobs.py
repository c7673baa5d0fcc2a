"""Jobs on the Hub: command lines, specs and scripts that submit them; what they lack is found."""

from __future__ import annotations

import json
import shlex

import pytest

from self_healing.preflight.checks import job_cost
from self_healing.preflight.finding import Place
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import Kind, read_subject
from self_healing.preflight.subject.jobs import seconds
from self_healing.preflight.tools import Tools
from self_healing.preflight.training.processes import is_one_gpu, process_count

SCRIPT = 'import os\nfrom trl import SFTConfig\nload_dataset(os.environ["DATASET"])\nSFTConfig(push_to_hub=True, run_name=os.getenv("RUN"))\n'
LINE = (
    "hf jobs uv run --flavor a10g-largex2 --timeout 2h --secrets HF_TOKEN -e DATASET=org/d --env=RUN=1 -d --with trl "
    "train.py --learning_rate 1e-4 --env x"
)
MINE = (
    "job-timeout-unset",
    "job-timeout-short",
    "job-token-missing",
    "job-variable-unset",
    "token-in-plain-text",
    "job-cost",
)


def read(folder, *inputs, argv=()):
    return read_subject(list(inputs), list(argv), CheckOptions(), folder)


def found(folder, *inputs, argv=(), **options):
    chosen = CheckOptions(offline=True, select=MINE, **options)
    report = run_checks(
        read_subject(list(inputs), list(argv), chosen, folder), Tools(options=chosen, environ={}, cwd=folder)
    )
    assert report.not_run == []
    return [(each.check, str(each.severity), str(each.where)) for each in report.findings], report


def test_a_command_line_is_a_job_and_the_command_it_runs(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    subject = read(tmp_path, argv=shlex.split(LINE))
    job = subject.job
    assert (job.flavor, job.gpu, job.gpus, job.timeout_s, job.script) == ("a10g-largex2", "a10g", 2, 7200.0, "train.py")
    assert (job.secrets, job.env) == ({"HF_TOKEN"}, {"DATASET": "org/d", "RUN": "1"})
    assert (subject.gpu, subject.gpus, subject.number("learning_rate")) == ("a10g", 2, 1e-4)
    assert (Kind.DATASET, "org/d") in {(each.kind, each.name) for each in subject.references}
    assert subject.command.launcher_flags[0].name == "flavor"


def test_what_is_said_of_an_option_goes_before_the_jobs_machine(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    subject = read_subject([], shlex.split(LINE), CheckOptions(gpu="t4", gpus=4), tmp_path)
    assert (subject.gpu, subject.gpus) == ("t4", 4)


def test_a_command_in_an_image_is_read_too(tmp_path):
    (tmp_path / "train.py").write_text("")
    line = "hf jobs run --flavor h200 --timeout 90m pytorch/pytorch python train.py --learning_rate 1"
    subject = read(tmp_path, argv=shlex.split(line))
    assert (subject.job.gpu, subject.job.timeout_s, subject.number("learning_rate")) == ("h200", 5400.0, 1)
    assert [script.named for script in subject.scripts] == ["train.py"]


@pytest.mark.parametrize("options", [
    "-v ./data:/mnt", "--volume hf://datasets/org/d:/mnt", "-v./data:/mnt", "--json", "-q", "-dq", "--ssh --dry-run", "-l mine",
    "--attempts 2", "--expose 8000", "--network-group g --network-alias a", "--resource-group-id r", "--format json",
])  # fmt: skip
def test_every_option_of_a_job_is_read_with_its_value(tmp_path, options):
    """What follows the options is the image: one that is read with too few or too many words shifts the whole command."""
    (tmp_path / "train.py").write_text("")
    line = f"hf jobs run {options} --flavor h200 -eRUN=1 -sHF_TOKEN image python train.py --learning_rate 1"
    subject = read(tmp_path, argv=shlex.split(line))
    assert subject.job.arguments[:2] == ("image", "python")
    assert (subject.job.flavor, subject.job.env, subject.job.secrets) == ("h200", {"RUN": "1"}, {"HF_TOKEN"})


def test_other_words_of_the_same_program_are_no_job(tmp_path):
    for line in ("hf jobs ps", "hf upload org/m .", "hf jobs logs run"):
        assert read(tmp_path, argv=shlex.split(line)).job is None, line


@pytest.mark.parametrize("name", ["job.yaml", "job.json", "job.toml"])
def test_a_spec_is_a_job_and_its_script_is_read_from_it(tmp_path, name):
    spec = {
        "script": SCRIPT,
        "flavor": "t4-medium",
        "timeout": 3600,
        "secrets": {"HF_TOKEN": "$HF_TOKEN"},
        "env": {"DATASET": "org/d"},
    }
    texts = {
        "job.yaml": "flavor: t4-medium\ntimeout: 3600\nsecrets: {HF_TOKEN: $HF_TOKEN}\nenv: {DATASET: org/d}\nscript: |\n"
        + "".join(f"  {line}\n" for line in SCRIPT.splitlines()),
        "job.json": json.dumps({"operation": "uv", "args": spec}, indent=2),
        "job.toml": f"flavor = 't4-medium'\ntimeout = 3600\nscript = '''\n{SCRIPT}'''\n[secrets]\nHF_TOKEN = '$HF_TOKEN'\n"
        "[env]\nDATASET = 'org/d'\n",
    }  # fmt: skip
    (tmp_path / name).write_text(texts[name])
    subject = read(tmp_path, name)
    job = subject.job
    assert (job.gpu, job.timeout_s, job.secrets, job.env) == ("t4", 3600.0, {"HF_TOKEN"}, {"DATASET": "org/d"})
    assert subject.is_on("push_to_hub")
    assert "org/d" in {each.name for each in subject.references}
    place = subject.setting("push_to_hub").place
    assert str(place) == ("job.yaml:9" if name == "job.yaml" else f"{name} (script):4")


def test_a_spec_names_a_script_or_an_address(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text("script: train.py\nflavor: l4x4\n")
    assert [script.named for script in read(tmp_path, "job.yaml").scripts] == ["train.py"]
    (tmp_path / "job.yaml").write_text("script: trian.py\nflavor: l4x4\n")
    subject = read(tmp_path, "job.yaml")
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.FILE, "trian.py")]
    assert subject.left_out == ("trian.py",), "it is no pass"
    (tmp_path / "job.yaml").write_text("script: https://example.com/x/train.py\nflavor: l4x4\n")
    subject = read(tmp_path, "job.yaml")
    assert [(each.kind, str(each.place)) for each in subject.references] == [(Kind.URL, "job.yaml:1")]


def test_a_script_that_submits_a_job(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "submit.py").write_text(
        'from huggingface_hub import run_uv_job\nimport os\nH = os.environ["MINE"]\n'
        'run_uv_job("train.py", flavor="h100", secrets={"HF_TOKEN": H})\n'
    )
    subject = read(tmp_path, "submit.py")
    assert (subject.job.gpu, subject.job.secrets, subject.job.timeout) == ("h100", {"HF_TOKEN"}, None)
    lines, _ = found(tmp_path, "submit.py")
    assert lines == [
        ("job-variable-unset", "error", "train.py:3"), ("job-timeout-unset", "warning", "submit.py:4"),
        ("job-variable-unset", "warning", "train.py:4"),
    ]  # fmt: skip


def test_what_the_seed_shows_as_a_bad_job_is_found(tmp_path):
    (tmp_path / "submit.py").write_text(
        'hf_jobs("uv", {"script": """\nimport os\nfrom datasets import load_dataset\nload_dataset(os.environ["DATASET"])\n""",\n'
        '  "env": {"DATASET": "trl-lib/argilla-dpo-mix-7k"}})\n'
    )
    subject = read(tmp_path, "submit.py")
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.DATASET, "trl-lib/argilla-dpo-mix-7k")]
    assert [line[0] for line in found(tmp_path, "submit.py")[0]] == ["job-timeout-unset"]


def test_what_a_job_lacks_is_found_and_a_sound_one_is_not_bothered(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert found(tmp_path, argv=shlex.split(LINE))[0] == []
    bare, report = found(tmp_path, argv=["hf", "jobs", "uv", "run", "train.py"])
    assert bare == [
        ("job-variable-unset", "error", "train.py:3"), ("job-token-missing", "error", "train.py:4"),
        ("job-timeout-unset", "warning", "job"), ("job-variable-unset", "warning", "train.py:4"),
    ]  # fmt: skip
    assert "--timeout 4h" in str(report)
    assert "--secrets HF_TOKEN" in str(report)


def test_a_header_of_the_script_may_say_what_the_job_needs(tmp_path):
    header = (
        '# /// script\n# [tool.hf-jobs]\n# flavor = "l4x1"\n# timeout = "3h"\n# secrets = ["HF_TOKEN"]\n'
        '# [tool.hf-jobs.env]\n# DATASET = "org/d"\n# RUN = "1"\n# ///\n'
    )
    (tmp_path / "train.py").write_text(header + SCRIPT)
    assert found(tmp_path, argv=["hf", "jobs", "uv", "run", "train.py"])[0] == []
    job = read(tmp_path, argv=shlex.split("hf jobs uv run --timeout 5h train.py")).job
    assert (job.gpu, job.timeout_s, job.env["DATASET"]) == ("l4", 18000.0, "org/d")


def test_variables_of_a_file_may_be_any(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    line = "hf jobs uv run --timeout 1h --env-file .env train.py"
    assert found(tmp_path, argv=shlex.split(line))[0] == []


def test_time_and_cost_are_told_from_hours_and_price(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = shlex.split(LINE)
    lines, report = found(tmp_path, argv=argv, duration_h=1.8, price_per_h=3.0)
    assert lines == [("job-timeout-short", "warning", "job: --timeout"), ("job-cost", "info", "job")]
    assert "--timeout 3h" in str(report)
    assert "cost 5.40, and at most 6.00" in str(report)
    assert "at most" not in str(found(tmp_path, argv=argv, duration_h=2.5, price_per_h=3.0)[1])
    assert found(tmp_path, argv=argv, duration_h=2.5)[0] == [("job-timeout-short", "error", "job: --timeout")]
    assert found(tmp_path, argv=argv, duration_h=1.5)[0] == []


def test_a_token_is_found_and_never_shown(tmp_path, monkeypatch):
    token = "hf_" + "QwErTyUiOpAsDfGhJkLz1234567890"
    (tmp_path / "train.py").write_text(
        f'login(token="{token}")\nSFTConfig(run_name="{token}", learning_rate="{token}")\n'
    )
    argv = [
        "hf",
        "jobs",
        "uv",
        "run",
        "--timeout",
        "1h",
        "--secrets",
        f"HF_TOKEN={token}",
        "-e",
        f"A={token}",
        "train.py",
        token,
    ]
    lines, report = found(tmp_path, argv=argv)
    assert {line[2] for line in lines if line[0] == "token-in-plain-text"} >= {
        "train.py:1",
        "train.py:2",
        "job: --secrets",
        "job: -e",
    }
    assert token not in str(report)
    assert token not in json.dumps(report.to_json())

    def quotes(self, subject, tools):
        yield self.info(
            Place("x"), f"it is {subject.setting('run_name').value}", f"Write {subject.setting('learning_rate').text}"
        )

    monkeypatch.setattr(job_cost.JobCost, "run", quotes)
    everything = run_checks(
        read_subject([], argv, CheckOptions(offline=True), tmp_path), Tools(options=CheckOptions(offline=True))
    )
    assert "it is ***" in str(everything)
    assert token not in str(everything)


def test_durations_are_read_as_jobs_read_them():
    assert [seconds(text) for text in ("90", "1.5h", "2d", "10m", "5s")] == [90.0, 5400.0, 172800.0, 600.0, 5.0]
    assert [seconds(text) for text in ("", "2 hours", "h", "-1h", "9" * 400)] == [None] * 5


@pytest.mark.parametrize(
    ("flavor", "count", "is_one"), [("a10g-small", 1, True), ("a10g-largex2", None, None), ("cpu-basic", None, None)]
)
def test_the_machine_of_a_job_tells_its_processes_where_it_has_one_gpu(tmp_path, flavor, count, is_one):
    (tmp_path / "train.py").write_text(SCRIPT)
    subject = read(tmp_path, argv=["hf", "jobs", "uv", "run", "--flavor", flavor, "train.py"])
    assert (process_count(subject), is_one_gpu(subject)) == (count, is_one)
