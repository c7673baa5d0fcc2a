"""Failures that can be seen: commands, variables, errors, progress; and what scripts build."""

from __future__ import annotations

import pytest

from self_healing.preflight.finding import Finding, Place, Severity
from self_healing.preflight.rendering import lines_of
from self_healing.preflight.runner import CheckReport

from .checked_scripts import checked, header

RUN = "import os, subprocess, sys\n"
BUILD = "['cmake', '--build', 'build']"


@pytest.mark.parametrize(
    ("check", "body", "line"),
    [
        ("command-output-dropped", f"r = subprocess.run({BUILD}, capture_output=True, check=True)\nprint(r.stdout)\n", 2),
        ("command-output-dropped", f"subprocess.check_output({BUILD}, stderr=subprocess.STDOUT)\n", 2),
        ("command-output-dropped", f"try:\n    subprocess.run({BUILD}, check=True, capture_output=True)\nexcept Exception as e:\n    print(e)\n    raise\n", 3),
        ("command-output-dropped", f"def run(cmd):\n    subprocess.run(cmd, check=True, stderr=subprocess.PIPE)\nrun({BUILD})\n", 3),
        ("exit-code-ignored", "def main():\n    os.system('git clone https://x/y && cd y')\n", 3),
        ("exit-code-ignored", f"code = subprocess.call({BUILD})\n", 2),
        ("unchecked-environment", "from transformers import AutoModel\nNAME = os.getenv('BASE')\ndef main():\n    m = AutoModel.from_pretrained(NAME)\n", 5),
        ("unchecked-environment", "from trl import SFTTrainer\nSFTTrainer(model=os.environ.get('BASE'))\n", 3),
        ("unchecked-environment", "n = int(os.environ.get('STEPS'))\n", 2),
        ("unchecked-environment", "from trl import SFTConfig\na = SFTConfig(hub_model_id=f\"{os.environ.get('ORG')}/m\")\n", 3),
        ("swallowed-error", "def main():\n    try:\n        trainer.train()\n    except Exception:\n        import traceback\n        traceback.print_exc()\n", 5),
        ("swallowed-error", "for name in names:\n    try:\n        data = load_dataset(name)\n    except:\n        continue\n", 5),
        ("swallowed-error", "try:\n    api.upload_folder(repo_id='a/b')\nexcept (OSError, Exception) as e:\n    logger.warning(e)\n", 4),
    ],
)  # fmt: skip
def test_what_would_fail_unseen_is_found_in_its_line(tmp_path, check, body, line):
    (found,) = checked(tmp_path, RUN + body)
    assert (found.check, found.where.line) == (check, line)


@pytest.mark.parametrize(
    "body",
    [
        f"p = subprocess.Popen({BUILD}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\nout, err = p.communicate()\nprint(err)\nsys.exit(p.returncode)\n",
        f"def main():\n    subprocess.run({BUILD}, check=True, capture_output=True)\ntry:\n    main()\nexcept subprocess.CalledProcessError as e:\n    print(e.stderr)\n    raise\n",
        f"def run(c):\n    return subprocess.run(c, capture_output=True)\nif run({BUILD}).returncode:\n    sys.exit(1)\n",
        f"results = [subprocess.run({BUILD}, capture_output=True)]\n",
        "has = subprocess.run(['which', 'cmake'], capture_output=True).returncode == 0\n",
        "ok = subprocess.run(['ping', '-c1', 'host'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0\n",
        f"options = {{'check': True}}\nsubprocess.run({BUILD}, **options)\n",
        f"done = subprocess.run({BUILD}, capture_output=True)\nreport(done)\n",
        f"subprocess.run({BUILD}, **options())\n",
        "def need(x):\n    if not x:\n        sys.exit(1)\nD = os.environ.get('D')\nneed(D)\nload_dataset(D)\n",
        "for name in ('D', 'M'):\n    if not os.environ.get(name):\n        sys.exit(name)\nload_dataset(os.environ.get('D'))\n",
        "if 'D' not in os.environ:\n    sys.exit('D')\nload_dataset(os.environ.get('D'))\n",
        "rank = int(os.environ.get('LOCAL_RANK'))\n",
        "token = os.environ.get('T')\nname = token or 'a/b'\nload_dataset(name)\n",
        "key = os.environ.get('K')\nif key is None:\n    sys.exit('K is not set')\nload_dataset(key)\n",
        "import wandb\nwandb.login(key=os.environ.get('WANDB_API_KEY'))\n",
        "def load():\n    try:\n        return load_dataset('a')\n    except Exception as e:\n        print(e)\n",
        "try:\n    model.train()\nexcept Exception:\n    pass\n",
        "try:\n    trainer.push_to_hub()\nexcept Exception as e:\n    failed.append(e)\n",
    ],
)
def test_what_is_seen_to_is_left_alone(tmp_path, body):
    assert [(each.check, each.message) for each in checked(tmp_path, RUN + body)] == []


def test_a_variable_that_the_command_or_this_machine_sets_is_there(tmp_path):
    (tmp_path / "train.py").write_text("import os\nload_dataset(os.environ.get('DATA'))\n")
    assert checked(tmp_path, None, "unchecked-environment", argv=["python", "train.py"]) != []
    assert checked(tmp_path, None, "unchecked-environment", argv=["python", "train.py"], environ={"DATA": "a/b"}) == []
    job = ["hf", "jobs", "uv", "run", "--env", "DATA=a/b", "train.py"]
    assert checked(tmp_path, None, "unchecked-environment", argv=job) == []
    assert checked(tmp_path, None, "unchecked-environment", argv=["hf", "jobs", "uv", "run", "train.py"], environ={"DATA": "x"}) != []  # fmt: skip


APT = "subprocess.run(['apt-get', 'install', '-y', 'build-essential', 'cmake'], check=True)\n"
CLONE = "subprocess.run(['git', 'clone', 'https://github.com/ggml-org/llama.cpp', '/w/llama.cpp'], check=True)\n"
CMAKE = "subprocess.run(['cmake', '--build', '/w/llama.cpp/build'], check=True)\n"


@pytest.mark.parametrize(
    ("body", "checks"),
    [
        (APT + CLONE + "subprocess.run('make -j', cwd='/w/llama.cpp', shell=True, check=True)\n", {"build-with-make"}),
        (APT + CLONE + "subprocess.run(['make'], check=True)\n", {"build-with-make"}),
        (CLONE + CMAKE, {"build-tools-not-installed"}),
        (APT + CLONE + CMAKE + "subprocess.run(['/w/llama.cpp/quantize', 'a', 'b'], check=True)\n", {"outdated-llama-cpp-path"}),
        (APT + CLONE + CMAKE + "subprocess.run(['/w/llama.cpp/build/bin/llama-quantize', 'a', 'b'], check=True)\n", set()),
        (APT + CLONE.replace(", check=True", "") + CMAKE, {"exit-code-ignored"}),
        ("def run(c):\n    subprocess.run(c, shell=True, check=True)\nrun('apt-get update && apt-get install -y cmake')\nrun('cmake -B build')\n", set()),
        ("TOOLS = ['git', 'cmake']\nsubprocess.run(['apt-get', 'install', '-y', *TOOLS], check=True)\n" + CMAKE, set()),
    ],
)  # fmt: skip
def test_build_steps(tmp_path, body, checks):
    assert {each.check for each in checked(tmp_path, header() + "import subprocess\n" + body)} == checks


def test_a_build_on_a_machine_of_ones_own_needs_no_installation(tmp_path):
    assert checked(tmp_path, "import subprocess\n" + CMAKE) == []


def test_the_path_that_is_proposed_is_that_of_the_build(tmp_path):
    body = "B = '/w/llama.cpp'\nsubprocess.run(['cmake', '--build', f'{B}/out'], check=True)\nsubprocess.run([f'{B}/llama-quantize', 'a'], check=True)\n"
    (found,) = checked(tmp_path, "import subprocess\n" + body)
    assert found.fix == 'Call "/w/llama.cpp/out/bin/llama-quantize"'


def test_further_lines_of_a_fix_stand_below_its_first():
    found = Finding(
        check="x", severity=Severity.ERROR, where=Place("a.py", 1), message="m", fix="Write:\ntry:\n    a()"
    )
    assert lines_of(CheckReport([found]))[1:4] == ["    fix: Write:", "         try:", "             a()"]
