"""`heal check --steps` as a user starts it: real children, with the hook on their path."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from self_healing.cli.main import main
from self_healing.preflight.dry_run.events import Events
from self_healing.preflight.dry_run.rewards import reward_findings
from self_healing.preflight.dry_run.vllm_server import server_findings
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.subject import Subject, read_subject

UV = Path(shutil.which("uv") or Path(sys.executable).with_name("uv"))
SOURCE = Path(__file__).parents[2] / "src"
STAND_IN = {
    "transformers/__init__.py": "from .training_args import TrainingArguments\nfrom .trainer import Trainer\n",
    "transformers/training_args.py": """
from dataclasses import dataclass
@dataclass
class TrainingArguments:
    output_dir: str = "out"
    max_steps: int = -1
    num_train_epochs: float = 3.0
    gradient_accumulation_steps: int = 1
    save_strategy: str = "steps"
    eval_strategy: str = "epoch"
    eval_steps: int = 0
    load_best_model_at_end: bool = True
    report_to: str = "wandb"
    push_to_hub: bool = True
    logging_strategy: str = "steps"
    logging_steps: int = 500
    def __post_init__(self):
        pass
""",
    "transformers/trainer.py": """
import time
from types import SimpleNamespace
class TrainerCallback:
    pass
class Trainer:
    def __init__(self, args):
        self.args, self.callbacks = args, []
    def add_callback(self, each):
        self.callbacks.append(each)
    def train(self, resume_from_checkpoint=None):
        assert resume_from_checkpoint is None
        state = SimpleNamespace(global_step=0)
        self.callbacks[0].on_train_begin(self.args, state, None, train_dataloader=range(100))
        while state.global_step < self.args.max_steps:
            time.sleep(0.1)
            state.global_step += 1
            self.callbacks[0].on_log(self.args, state, None, {"loss": LOSS})
            self.callbacks[0].on_step_end(self.args, state, None)
    def save_model(self, output_dir=None):
        import pathlib
        folder = pathlib.Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "saved").write_text("x")
    def push_to_hub(self):
        raise AssertionError("pushed")
LOSS = 2.0
""",
}
"""What the hook changes of transformers, without the eight seconds that importing it takes; test_isolate.py has the real one."""


@pytest.fixture
def heal(tmp_path):
    """Start `heal check` in a folder of its own, and hold it to leave nothing behind."""
    home = tmp_path / "temporary"
    home.mkdir()
    folder = tmp_path / "work"
    folder.mkdir()

    def start(*words, **environ):
        path = os.pathsep.join([str(SOURCE), *filter(None, [environ.pop("PYTHONPATH", "")])])
        return subprocess.Popen(
            [sys.executable, "-m", "self_healing", "check", *map(str, words)], cwd=folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(home), "PYTHONPATH": path, **environ},
        )  # fmt: skip

    def check(*words, **environ):
        process = start(*words, **environ)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    check.start, check.folder, check.temporary = start, folder, home
    return check


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_being_asked_nothing_of_the_users_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path, {"train.py": "open('was-run', 'w').close()\n", "sitecustomize.py": "open('was-run', 'w').close()\n"}
    )
    before = sorted(tmp_path.rglob("*"))
    main(["check", "--offline", "train.py"])
    main(["check", "--offline", "--", sys.executable, "train.py", "--max_steps", "5"])
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["check", "--steps", "2", "--model", "org/model"]) == 2
    assert "name it behind --" in capsys.readouterr().err


def test_a_command_that_submits_a_job_is_never_started(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    submits = tmp_path / "hf"
    submits.write_text("#!/bin/sh\ntouch submitted\n")
    submits.chmod(0o755)
    write(tmp_path, {"train.py": "pass\n"})
    main(["check", "--offline", "--steps", "2", "--", str(submits), "jobs", "uv", "run", "train.py"])
    assert "not run: dry-run: the command starts the run elsewhere" in capsys.readouterr().out
    assert not (tmp_path / "submitted").exists()


def test_a_sound_training_is_limited_and_measured_and_leaves_nothing(heal):
    write(heal.folder, {f"libs/{name}": text for name, text in STAND_IN.items()})
    script = """
        from transformers import Trainer, TrainingArguments
        args = TrainingArguments(output_dir="out")
        print(args)
        assert (args.save_strategy, args.report_to, args.push_to_hub) == ("no", "none", False)
        assert (args.eval_strategy, args.load_best_model_at_end, args.logging_steps) == ("steps", False, 1)
        trainer = Trainer(args)
        trainer.train(resume_from_checkpoint=True)
        trainer.save_model("final")
        trainer.save_model()
        trainer.push_to_hub()
    """
    write(heal.folder, {"train.py": "\n".join(line.strip() for line in script.splitlines())})
    before = sorted(heal.folder.rglob("*"))
    code, out, _ = heal(
        "--steps",
        3,
        "--json",
        "--strict",
        "--select",
        "dry-run",
        "--",
        sys.executable,
        "-B",
        "train.py",
        PYTHONPATH=str(heal.folder / "libs"),
    )
    report = json.loads(out)
    assert report["findings"] == report["not_run"] == [], out
    measured = report["dry_run"]
    assert (measured["steps"], measured["planned_steps"]) == (3, 300)  # 100 batches, three epochs
    assert measured["hours"] == pytest.approx(measured["seconds_per_step"] / 12)
    assert measured["seconds_per_step"] >= 0.1
    assert measured["host_bytes"] > 2**20
    assert code == 0
    assert sorted(path for path in heal.folder.rglob("*") if "__pycache__" not in path.parts) == before
    assert list(heal.temporary.iterdir()) == []


def test_a_failure_is_diagnosed_at_its_line_and_its_output_stays(heal):
    write(heal.folder, {"train.py": """\
print("loading")
def train():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.00 GiB total capacity)")
train()
"""})  # fmt: skip
    code, out, _ = heal("--steps", 2, "--", sys.executable, "train.py")
    assert code == 1
    first = next(line for line in out.splitlines() if "[dry-run]" in line)
    assert first.startswith("train.py:3: error: the dry run failed (oom")
    assert "Tried to allocate 20.00 MiB" in first
    assert "  | RuntimeError: CUDA out of memory" in out
    [kept] = heal.temporary.glob("*/*")
    assert str(kept) in out
    assert kept.read_text().startswith("loading\n")


def test_a_command_that_cannot_be_limited_is_ended_after_its_steps_or_its_time_with_all_that_came_of_it(heal):
    write(heal.folder, {"loop.py": """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("child", "w").write(str(child.pid))
for step in range(1, 1000 if "--steps" in sys.argv else 1):
    print({"loss": 2.0 / step, "step": step}, flush=True)
    time.sleep(0.1)
time.sleep(600)
"""})  # fmt: skip
    for words, seconds, wanted in (
        (["--steps"], 100, "the dry run made "),
        ([], 3, "warning: the dry run made no step within 3 s"),
    ):
        began = time.monotonic()
        code, out, _ = heal("--steps", 2, "--seconds", seconds, "--", sys.executable, "loop.py", *words)
        assert time.monotonic() - began < 60
        assert (code, wanted in out) == (int(not words), True), out
        assert not psutil.pid_exists(int((heal.folder / "child").read_text()))


def test_who_interrupts_a_dry_run_is_left_with_nothing(heal):
    write(heal.folder, {"wait.py": "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"})
    process = heal.start("--steps", 2, "--", sys.executable, "wait.py")
    until = time.monotonic() + 30
    while not ((heal.folder / "pid").exists() and (heal.folder / "pid").read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not psutil.pid_exists(int((heal.folder / "pid").read_text()))
    assert list(heal.temporary.iterdir()) == []


def wheel(folder):
    """Write the smallest wheel there is."""
    files = {
        "tinydep.py": b"VALUE = 'from the header'\n",
        "tinydep-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tinydep\nVersion: 1.0\n",
        "tinydep-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(folder / "tinydep-1.0-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("tinydep-1.0.dist-info/RECORD", "\n".join([*rows, "tinydep-1.0.dist-info/RECORD,,"]) + "\n")


def test_a_fresh_environment_holds_what_the_header_names_and_nothing_else(heal):
    wheel(heal.folder)
    body = 'import importlib.util, tinydep\nprint(tinydep.VALUE)\nassert importlib.util.find_spec("pydantic") is None\n'
    script = f'# /// script\n# dependencies = ["tinydep==1.0"]\n# ///\n{body}raise ValueError("came so far")\n'
    write(heal.folder, {"train.py": script})
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(heal.folder), "PATH": "/usr/bin:/bin"}
    code, out, _ = heal("--fresh-env", "--", sys.executable, "train.py", **local)
    assert code == 1
    assert "  | from the header" in out
    assert "ValueError: came so far [dry-run]" in out
    (heal.folder / "tinydep-1.0-py3-none-any.whl").unlink()
    code, out, _ = heal("--fresh-env", "--", sys.executable, "train.py", **local)
    assert "train.py:1: error: what the header of train.py names cannot be installed" in out
    assert "No matching distribution found for tinydep==1.0" in out


@pytest.mark.skipif(not UV.is_file(), reason="uv is not installed")
def test_uv_makes_the_fresh_environment_where_it_is_there(heal):
    wheel(heal.folder)
    body = 'import importlib.util, tinydep\nprint(tinydep.VALUE)\nassert importlib.util.find_spec("pydantic") is None\n'
    script = f'# /// script\n# dependencies = ["tinydep==1.0"]\n# ///\n{body}raise ValueError("came so far")\n'
    write(heal.folder, {"train.py": script})
    local = {
        "PATH": f"{UV.parent}:/usr/bin:/bin", "UV_CACHE_DIR": str(heal.folder / "cache"), "UV_PYTHON": sys.executable,
        "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(heal.folder), "UV_PYTHON_DOWNLOADS": "never",
    }  # fmt: skip
    _, out, _ = heal("--fresh-env", "--", "python", "train.py", **local)
    assert "  | from the header" in out
    assert "ValueError: came so far [dry-run]" in out
    write(heal.folder, {"train.py": script.replace("1.0", "2.0")})
    _, out, _ = heal("--fresh-env", "--", "python", "train.py", **local)
    assert "train.py:1: error: what the header of train.py names cannot be installed: No solution found" in out
    assert "tinydep==2.0" in out
    assert "[dry-run]" not in out
    write(heal.folder, {"train.py": script.replace("tinydep==1.0", "another-one")})
    _, out, _ = heal("--fresh-env", "--", "python", "train.py", **{**local, "UV_NO_INDEX": "0", "UV_OFFLINE": "1"})
    assert "not run: fresh-env: what the header names cannot be fetched: there is no network" in out


NO_SOLUTION = (
    "error: No solution found when resolving script dependencies\n  cause: Because tinydep was not found in the {}.\n"
)
OF_UV = {
    "no such version": (NO_SOLUTION.format("package registry"), "No solution found when resolving script dependencies Because tinydep was not"),
    "as older ones say it": ("  \u00d7 No solution found when resolving:\n  \u2570\u2500\u25b6 Because tinydep was not found\n", "Because tinydep was not"),
    "no name": ('error: TOML parse error at line 1, column 17\n  |\n1 | dependencies = ["a b!"]\n  |   ^^^^\nExpected one of `@`\n', "Expected one of `@`"),
    "no such Python": ("error: No interpreter found for Python >=3.99 in search path\n", "No interpreter found for Python >=3.99"),
    "no network": ("error: Request failed after 3 retries\n  cause: Failed to fetch: http://x/y\n  cause: error sending request\n", ""),
    "told to stay offline": (NO_SOLUTION.format("cache") + "\nhint: Packages were unavailable because the network was disabled.\n", ""),
}  # fmt: skip
"""What uv 0.13 has said; it stands in for it here, so that this needs no uv."""


@pytest.mark.parametrize("what", OF_UV)
def test_what_uv_cannot_install_is_told_from_what_the_script_does_wrong(heal, what):
    said, reason = OF_UV[what]
    write(heal.folder, {"train.py": "# /// script\n# dependencies = []\n# ///\n", "said": said})
    write(heal.folder, {"bin/uv": f"#!/bin/sh\ncat {heal.folder}/said >&2\nexit 2\n"})
    (heal.folder / "bin/uv").chmod(0o755)
    _, out, _ = heal(
        "--fresh-env", "--select", "fresh-env", "--", "python", "train.py", PATH=f"{heal.folder}/bin:/usr/bin:/bin"
    )
    if reason:
        assert re.search(
            rf"train.py:1: error: what the header .* cannot be installed: .*{re.escape(reason)}.*\[fresh-env\]", out
        ), out
        assert "uv sync --script train.py" in out
    else:
        assert "not run: fresh-env: what the header names cannot be fetched: there is no network" in out


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([], []),
        (
            [{"of": "answers", "column": "answer", "values": [1.0, 0.0]}, {"of": "completions", "values": [0.0]}],
            ["info"],
        ),
        ([{"of": "completions", "values": [0.0, 0.0]}], ["warning"]),
        ([{"of": "answers", "column": "answer", "values": [0.0, 0.0]}], ["warning"]),
        ([{"of": "completions", "values": [0.5, float("nan")]}], ["error"]),
        ([{"of": "completions", "error": "KeyError: 'x'"}], ["error"]),
        ([{"of": "completions", "values": [None, 1.0]}], []),
    ],
)
def test_rewards_that_say_nothing_are_told_apart(events, wanted):
    said = Events(tuple({"event": "reward", "function": "exact", **each} for each in events))
    assert [str(found.severity) for found in reward_findings(said, Subject())] == wanted


def test_a_reward_function_that_nobody_could_try_is_not_passed(heal):
    write(heal.folder, {f"libs/{name}": text for name, text in STAND_IN.items()})
    write(heal.folder, {"train.py": """\
from transformers import Trainer, TrainingArguments
async def judge(completions, **kwargs):
    return [1.0]
trainer = Trainer(TrainingArguments())
trainer.reward_funcs, trainer.train_dataset, trainer.state = [judge], [{"prompt": "1+1", "answer": "2"}], None
trainer.train()
"""})  # fmt: skip
    words = ("--steps", 2, "--select", "reward-function", "--", sys.executable, "-B", "train.py")
    code, out, _ = heal(*words, PYTHONPATH=str(heal.folder / "libs"))
    assert code == 0
    assert "not run: reward-function: judge: neither called with known answers nor listened to" in out
    code, _, _ = heal("--strict", *words, PYTHONPATH=str(heal.folder / "libs"))
    assert code == 1


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = {"/health": b"", "/v1/models": b'{"data": [{"id": "org/served"}]}'}
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(known.get(self.path, b""))

    def log_message(self, *_):
        pass


@pytest.fixture
def vllm(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def found(model, port=server.server_port, mode="server"):
        words = ["trl", "grpo", "--model_name_or_path", model, "--use_vllm", "true", "--vllm_mode", mode]
        subject = read_subject([], [*words, "--vllm_server_port", str(port)], CheckOptions(), tmp_path)
        return [found.message for found in server_findings(subject)]

    found.close = server.server_close
    found.shutdown = server.shutdown
    yield found
    server.shutdown()
    server.server_close()


def test_a_vllm_server_answers_and_serves_the_model_of_the_run(vllm, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there: what is on this machine is asked directly
    assert vllm("org/served") == []
    [other] = vllm("org/other")
    assert "serves org/served, and the run trains org/other" in other
    assert vllm("org/other", mode="colocate") == []
    vllm.shutdown()
    vllm.close()
    [silent] = vllm("org/served")
    assert "does not answer" in silent
