"""Failures that can be seen: commands, variables, errors, progress; and what scripts build."""

from __future__ import annotations

import pytest

from self_healing.preflight.finding import Finding, Place, Severity
from self_healing.preflight.rendering import lines_of
from self_healing.preflight.runner import CheckReport

from .checked_scripts import checked, header

RUN = "import os, subprocess, sys\n"
BUILD = "['cmake', '--build', 'build']"
LOOP = (
    "for batch in loader:\n    try:\n        loss = model(batch).loss\n{}    except {}:\n        {}\n    print(loss)\n"
)
REWARD = "def score(completions, **kwargs):\n    out = []\n    for t in completions:\n        try:\n            out.append(float(t))\n        {}\n    return out\n"  # fmt: skip


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
        ("swallowed-error", LOOP.format("        loss.backward()\n        optimizer.step()\n        if loss < best:\n            break\n", "Exception as e", "print(e)"), 9),
        ("swallowed-error", LOOP.format("        accelerator.backward(loss)\n", "BaseException", "continue"), 6),
        ("swallowed-error", REWARD.format("except (IndexError, ValueError):\n            continue"), 7),
        ("swallowed-error", REWARD.format("except:\n            logger.warning('no number')"), 7),
        ("swallowed-error", "def score(texts, **kwargs):\n    out = []\n    for t in texts:\n        with contextlib.suppress(ValueError):\n            out.append(float(t))\n    return out\nGRPOTrainer(reward_funcs=[score])\n", 5),
        ("command-output-dropped", "subprocess.check_output(['df', '-h'], stderr=subprocess.STDOUT)\n", 2),
        ("command-output-dropped", "subprocess.run('nvidia-smi', shell=True, check=True, capture_output=True)\n", 2),
    ],
)  # fmt: skip
def test_what_would_fail_unseen_is_found_in_its_line(tmp_path, check, body, line):
    (found,) = (each for each in checked(tmp_path, RUN + body) if each.severity > Severity.INFO)
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
        LOOP.format("        loss.backward()\n        optimizer.step()\n", "torch.OutOfMemoryError", "continue"),
        LOOP.format("        loss.backward()\n", "Exception", "failed += 1\n        if failed > 9:\n            raise"),
        LOOP.format("        loss.backward()\n        break\n", "Exception", "print('again')"),
        REWARD.format("except ValueError:\n            out.append(0.0)"),
        REWARD.format("except ValueError:\n            pass").replace("completions", "rows"),
        REWARD.replace("out.append(float(t))", "one = float(t)").format(
            "except ValueError:\n            pass\n        out.append(one)"
        ),
        "subprocess.run(['which', 'cmake'], check=True, capture_output=True)\n",
        "try:\n    subprocess.run(['nvidia-smi'], check=True, capture_output=True)\n    gpu = True\nexcept Exception:\n    gpu = False\n",
        "subprocess.run(['nvidia-smi'], check=True)\n",
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


SH = "import subprocess, sys\nfrom pathlib import Path\n{}\nL = Path('/w/llama.cpp')\n{}\n"
CONVERTS = "sh({}sys.executable, L / 'convert_hf_to_gguf.py', 'm'{})"


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("def sh(*words):\n    subprocess.run([str(w) for w in words], check=True)", CONVERTS.format("", "")),
        ("def sh(words):\n    subprocess.run(list(map(str, words)), check=True)", CONVERTS.format("[", "]")),
        ("def sh(title, words):\n    print(title)\n    subprocess.run(words, check=True)", CONVERTS.format("'convert', [", "]")),
        ("def sh(title, *words):\n    print(title)\n    subprocess.check_call(words)", CONVERTS.format("'convert', ", "")),
        ("def sh(*words):\n    subprocess.run(['nice', *words], check=True)", CONVERTS.format("", "")),
        ("class Steps:\n    def sh(self, *words):\n        subprocess.run(words, check=True)\n    def go(self):\n        self." + CONVERTS.format("", "").replace("L /", "'/w/' +"), ""),
        ("def main(root):\n    subprocess.run([sys.executable, f'{root}/convert_hf_to_gguf.py', 'm'], check=True)", ""),
        ("def main(root):\n    script = root / 'convert_hf_to_gguf.py'\n    subprocess.run([sys.executable, str(script), 'm'], check=True)", ""),
    ],
)  # fmt: skip
def test_what_a_conversion_needs_is_known_however_it_is_started(tmp_path, function, call):
    listed = header("torch>=2.6", "transformers>=5.0", "protobuf>=4.25", "gguf>=0.16", "numpy>=1.26")
    (found,) = checked(tmp_path, listed + SH.format(function, call), "need-not-in-header")
    assert "sentencepiece" in found.message


@pytest.mark.parametrize(
    "body",
    [
        "def main(root):\n    print('next: run', 'convert_hf_to_gguf.py')\n    subprocess.run([root], check=True)",
        "def sh(*words):\n    subprocess.run(words, check=True)\nsh('uv', 'run', '--with', 'gguf', '/w/convert_hf_to_gguf.py')",
        "NAME = 'convert_hf_to_gguf.py'\nsubprocess.run(['git', 'pull'], check=True)",
    ],
)
def test_a_conversion_that_is_not_started_with_the_packages_of_the_script_needs_none(tmp_path, body):
    assert checked(tmp_path, header() + SH.format(body, ""), "need-not-in-header") == []


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
