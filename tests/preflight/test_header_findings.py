"""The PEP 723 header: what is found wrong with it, and where."""

from __future__ import annotations

import pytest

from self_healing.core.failure import Severity

from .checked_scripts import checked, header

SFT = "from trl import SFTConfig\nargs = SFTConfig(output_dir='out', {})\n"
LOAD = "from transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained('a/b', {})\n"
TRL = "trl>=1.0,<2"
CORE = ("transformers>=5.0,<6", "torch>=2.4,<3")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("# /// script\n# dependencies = []\nimport os\n", 1, "never closed"),
        ("# /// script\n# dependencies = [\n\n# ]\n# ///\n", 3, "ends here"),
        ("# /// script\n# dependencies = [\n#'torch'\n# ]\n# ///\n", 3, "ends here"),
        ("# /// script\n# dependencies = []\n#///\n", 3, "does not close"),
        ("# /// script \n# dependencies = []\n# ///\n", 1, "exactly"),
        ("#///script\n# dependencies = []\n# ///\n", 1, "exactly"),
        (header("torch>=2") + "\n" + header("trl>=1"), 7, "second header"),
        ('# /// script\n# dependencies = [\n#     "torch"\n#     "trl"\n# ]\n# ///\n', 4, "no TOML"),
        ('# /// script\n# dependencies = "torch"\n# ///\n', 2, "not a list"),
        ("# /// script\n# dependencies = [1]\n# ///\n", 2, "not a list"),
        (header("torch>=2", "trl=1.0"), 4, "'trl=1.0'"),
        ('# /// script\n# requires-python = "3.11 or so"\n# ///\n', 2, "no range"),
        ("# /// script\n# requires-python = 3.11\n# ///\n", 2, "no range"),
        ('# /// script\n# packages = ["torch"]\n# ///\n', 2, "no key"),
    ],
)
def test_a_header_that_cannot_be_read_is_named_with_its_line(tmp_path, text, line, said):
    (found,) = checked(tmp_path, text)
    assert (found.check, found.severity, found.where.line) == ("unreadable-header", Severity.ERROR, line)
    assert said in found.message


def test_the_fix_of_a_single_equals_sign_is_the_pin_that_was_meant(tmp_path):
    (found,) = checked(tmp_path, header("trl=1.0"))
    assert '"trl==1.0"' in found.fix


@pytest.mark.parametrize(
    ("listed", "body", "name", "line"),
    [
        ((TRL,), "import cv2", "opencv-python-headless", 6),
        ((TRL,), "import os\nimport bitsandbytes as bnb", "bitsandbytes", 7),
        ((TRL,), "from google.protobuf import json_format", "protobuf", 6),
        ((TRL,), "from google import protobuf", "protobuf", 6),
        (("transformers>=5,<6",), "import torch", "torch", 6),
        (("torch>=2.4",), "import numpy as np", "numpy", 6),
        ((), "from flash_attn import flash_attn_func", "flash-attn", 5),
        (("sklearn",), "import sklearn.metrics", "scikit-learn", 6),
    ],
)
def test_an_import_that_the_header_does_not_come_to_is_an_error(tmp_path, listed, body, name, line):
    (found,) = checked(tmp_path, header(*listed) + body + "\n", "import-not-in-header")
    assert (found.severity, found.where.line) == (Severity.ERROR, line)
    assert f'"{name}' in found.fix


def test_an_import_inside_a_function_may_never_be_reached(tmp_path):
    text = header(TRL) + "def plot():\n    import matplotlib.pyplot\n"
    assert [each.severity for each in checked(tmp_path, text, "import-not-in-header")] == [Severity.WARNING]


def test_what_an_unknown_distribution_may_bring_is_no_problem(tmp_path):
    text = header("our-own-stack>=3") + "import torch\n"
    (found,) = checked(tmp_path, text, "import-not-in-header")
    assert found.severity == Severity.INFO
    assert "our-own-stack" in found.message


@pytest.mark.parametrize(
    "body",
    [
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'pandas'], check=True)\nimport pandas\n",
        "import os\nos.system('pip install -q -r requirements.txt || exit 1')\nimport pandas\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n",
    ],
)
def test_what_a_script_sees_to_itself_is_not_missing(tmp_path, body):
    assert checked(tmp_path, header("torch>=2.4") + body, "import-not-in-header") == []


@pytest.mark.parametrize(
    ("listed", "body", "name"),
    [
        (CORE, LOAD.format("device_map='auto'"), "accelerate"),
        (CORE, "from transformers import Trainer\nTrainer(model=m)\n", "accelerate"),
        (("transformers>=5,<6",), LOAD.format(""), "torch"),
        (CORE, LOAD.format("attn_implementation='flash_attention_2'"), "flash-attn"),
        (CORE, LOAD.format("load_in_4bit=True"), "bitsandbytes"),
        (
            CORE,
            "from transformers import BitsAndBytesConfig\nq = BitsAndBytesConfig(load_in_8bit=True)\n",
            "bitsandbytes",
        ),
        ((TRL,), SFT.format("optim='paged_adamw_8bit'"), "bitsandbytes"),
        ((TRL,), SFT.format("optim='adamw_torch_8bit'"), "torchao"),
        ((TRL,), SFT.format("optim='galore_adamw'"), "galore-torch"),
        ((TRL,), SFT.format("model_init_kwargs={'attn_implementation': 'flash_attention_2'}"), "flash-attn"),
        ((TRL,), SFT.format("report_to='trackio'"), "trackio"),
        ((TRL,), SFT.format("report_to=['tensorboard']"), "tensorboard"),
        ((TRL,), SFT.format("use_vllm=True"), "vllm"),
        ((TRL,), SFT.format("use_liger_kernel=True"), "liger-kernel"),
        ((TRL,), SFT.format("deepspeed='zero3.json'"), "deepspeed"),
        ((TRL,), "from trl import SFTTrainer\nSFTTrainer(model='m', peft_config=make())\n", "peft"),
        (("evaluate",), "import evaluate\nevaluate.load('rouge')\n", "rouge-score"),
        ((TRL,), "import os\nos.environ['HF_HUB_ENABLE_HF_TRANSFER'] = '1'\nimport trl\n", "hf-transfer"),
        (("polars",), "import polars as pl\npl.DataFrame().to_pandas()\n", "pandas"),
    ],
)
def test_what_an_option_needs_is_missed(tmp_path, listed, body, name):
    (found,) = checked(tmp_path, header(*listed) + body, "need-not-in-header")
    assert found.severity >= Severity.WARNING
    assert f'"{name}' in found.fix


@pytest.mark.parametrize(
    "body", ["LlamaTokenizer.from_pretrained('a/b')", "AutoTokenizer.from_pretrained('a/llama', use_fast=False)"]
)
def test_slow_tokenizers_may_need_sentencepiece_and_protobuf(tmp_path, body):
    text = header(*CORE) + f"from transformers import AutoTokenizer, LlamaTokenizer\nt = {body}\n"
    found = checked(tmp_path, text, "need-not-in-header")
    assert [(each.severity, each.message.split()[2].rstrip(",")) for each in found] == [
        (Severity.WARNING, "sentencepiece"),
        (Severity.WARNING, "protobuf"),
    ]


def test_a_conversion_to_gguf_needs_more_than_it_imports(tmp_path):
    body = "import subprocess\nsubprocess.run(['python', 'llama.cpp/convert_hf_to_gguf.py', 'm'], check=True)\n"
    found = checked(tmp_path, header("transformers>=5,<6", "peft>=0.18,<1", "torch>=2") + body, "need-not-in-header")
    assert {each.message.split(" needs ")[1].split(",")[0] for each in found} == {"sentencepiece", "protobuf", "gguf"}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (("trl>=0.23", "transformers<4.50"), "trl from 0.23 on needs transformers>=4.56.1"),
        (("transformers==4.52.4", "huggingface-hub>=1.0"), "huggingface-hub>=0.30,<1.0"),
        (("torch==2.4.0", "torchvision==0.21.0"), "torch==2.6.*"),
        (("torch==2.4.0", "torchaudio~=2.6.0"), "torch==2.6.*"),
        (("vllm>=0.11", "torch==2.6.0"), "torch>=2.8"),
        (("trl==1.2.0", "datasets<4"), "datasets>=4.7"),
    ],
)
def test_ranges_that_releases_contradict_are_an_error(tmp_path, listed, said):
    (found,) = checked(tmp_path, header(*listed), "versions-contradict")
    assert said in found.message


@pytest.mark.parametrize(
    "listed",
    [
        ("trl>=0.12", "transformers<4.50"), ("torch>=2.4", "torchvision>=0.19"), ("trl", "transformers==4.40.0", "datasets<3"),
        ("torch==2.6.0 ; sys_platform == 'linux'", "torch==2.4.0 ; sys_platform == 'darwin'"), ("vllm>=0.6", "torch==2.6.0"),
    ],
)  # fmt: skip
def test_ranges_that_can_be_had_together_are_left_alone(tmp_path, listed):
    assert checked(tmp_path, header(*listed), "versions-contradict") == []


def test_the_core_libraries_without_a_bound_are_one_warning(tmp_path):
    text = header("transformers", "trl[peft]", "torch>=2.4", "wandb") + "import trl, wandb\n"
    (found,) = checked(tmp_path, text, "no-version-bound")
    assert found.message.startswith("transformers, trl: no bound")
    assert '"trl[peft]>=' in found.fix


def test_a_job_without_a_header_is_told_which_one_to_write(tmp_path):
    (tmp_path / "train.py").write_text("import trl\nfrom PIL import Image\n")
    argv = ["hf", "jobs", "uv", "run", "--flavor", "t4-small", "train.py", "--steps", "3"]
    (found,) = checked(tmp_path, None, "no-header", argv=argv)
    assert found.severity == Severity.ERROR
    written = found.fix.split("\n", 1)[1]
    assert checked(tmp_path, f"{written}\nimport trl\nfrom PIL import Image\n") == []


@pytest.mark.parametrize(
    "argv",
    [
        "uv run --with trl --with=pillow train.py", "hf jobs uv run --image our/image train.py", "python train.py",
        "torchrun --nproc_per_node=2 train.py", "hf jobs run our/image python train.py", "uv run --with-requirements r.txt train.py",
    ],
)  # fmt: skip
def test_a_script_without_a_header_that_finds_its_packages_otherwise_is_left_alone(tmp_path, argv):
    (tmp_path / "train.py").write_text("import trl\nfrom PIL import Image\n")
    assert checked(tmp_path, None, *("no-header", "import-not-in-header"), argv=argv.split()) == []


def test_uv_run_in_a_project_needs_no_header(tmp_path):
    (tmp_path / "train.py").write_text("import trl\n")
    assert [each.check for each in checked(tmp_path, None, argv=["uv", "run", "train.py"])] == ["no-header"]
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert checked(tmp_path, None, argv=["uv", "run", "train.py"]) == []


def test_the_header_does_not_count_where_an_interpreter_of_this_machine_runs_the_script(tmp_path):
    (tmp_path / "train.py").write_text(header("packaging<2") + "import torch\n")
    (found,) = checked(tmp_path, None, argv=["python", "train.py"])
    assert (found.check, found.severity) == ("installed-version-differs", Severity.WARNING)


def test_a_module_beside_the_script_is_an_error_for_a_job_and_a_note_otherwise(tmp_path):
    (tmp_path / "rewards.py").write_text("")
    text = header(TRL) + "import rewards\nfrom rewards import score\nimport trl\n"
    assert [(each.check, each.severity) for each in checked(tmp_path, text)] == [
        ("local-module-left-behind", Severity.INFO)
    ]
    found = checked(tmp_path, None, argv=["hf", "jobs", "uv", "run", "train.py"])
    assert [(each.check, each.severity) for each in found] == [("local-module-left-behind", Severity.ERROR)]


@pytest.mark.parametrize(
    ("python", "listed", "body", "said"),
    [
        ("<3.10", (TRL,), "import trl\n", "needs Python >=3.10"),
        ("==3.13.*", ("vllm>=0.9,<0.11",), "import vllm\n", "<3.13"),
        ("<3.11", (), "try:\n    pass\nexcept* OSError:\n    pass\n", "except*"),
        (">=3.12,<3.11", (), "", "no version is in this range"),
    ],
)
def test_a_python_that_does_not_fit_is_an_error(tmp_path, python, listed, body, said):
    (found,) = checked(tmp_path, header(*listed, python=python) + body, "python-version-does-not-fit")
    assert said in found.message


def test_a_header_inside_a_text_belongs_to_another_script(tmp_path):
    text = f'JOB = """\n{header("nothing=1")}"""\nimport torch\n'
    assert checked(tmp_path, text) == []


@pytest.mark.parametrize(
    "body",
    [
        SFT.format("optim='adamw_bnb_8bit'"),
        SFT.format("model_init_kwargs={'attn_implementation': 'flash_attention_2'}"),
    ],
)
def test_what_the_header_lacks_is_said_once_also_on_a_machine_that_lacks_it(tmp_path, body):
    names = ("need-not-in-header", "bitsandbytes-missing", "flash-attention-missing")
    bare = {"gpus": ["NVIDIA A10G"], "packages": {}}
    (found,) = checked(tmp_path, header(TRL) + body, *names, machine=bare)
    assert found.check == names[0]
    (found,) = checked(tmp_path, header(TRL) + body, *names, argv=["python", "train.py"], machine=bare)
    assert found.check in names[1:]  # that interpreter reads no header


def test_what_comes_with_an_extra_of_the_header_is_not_missed(tmp_path):
    text = header("trl[peft,quantization]>=1.0") + SFT.format("optim='adamw_bnb_8bit'")
    assert checked(tmp_path, text, "need-not-in-header") == []
    assert checked(tmp_path, text, "bitsandbytes-missing") == []
