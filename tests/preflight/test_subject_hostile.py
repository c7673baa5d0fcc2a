"""Hostile and broken files: one sentence and exit code 2, soon, and nothing of them is ever run."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from self_healing.core.errors import InputError
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.subject import read_subject

SLOWEST_S = 2.0


def read(folder, name):
    return read_subject([name], [], CheckOptions(), folder)


REFUSED = {
    "a huge script": ("train.py", b"x = 1\n" * 400_000),
    "a huge config": ("config.yaml", b"a: 1\n" * 100_000),
    "a script without end": ("train.py", b"f(a, b)\n" * 12_000),
    "null bytes in a script": ("train.py", b"x = 1\x00\n"),
    "null bytes in a config": ("config.yaml", b"a: 1\x00\n"),
    "null bytes in JSON": ("config.json", b'{"a": "\x00"}'),
    "no Python": ("train.py", b"def :\n"),
    "no YAML": ("config.yaml", b"a: [1\n"),
    "tabs in YAML": ("config.yaml", b"a:\n\tb: 1\n"),
    "no JSON": ("config.json", b"{'a': 1}"),
    "no TOML": ("config.toml", b"a = \n"),
    "a list": ("config.json", b"[1, 2]"),
    "nothing at all": ("config.yaml", b""),
    "UTF-16": ("train.py", "x = 1\n".encode("utf-16")),
    "UTF-16 in a config": ("config.yaml", "a: 1\n".encode("utf-16")),
    "Latin-1 that is not declared": ("train.py", b"# caf\xe9\n"),
    "Latin-1 in a config": ("config.yaml", b"a: caf\xe9\n"),
    "an encoding that takes long": ("train.py", b"# coding: punycode\nx = 1\n"),
    "an encoding that is none": ("train.py", b"# coding: rot13\nx = 1\n"),
    "an encoding nobody knows": ("train.py", b"# coding: nobody\nx = 1\n"),
    "brackets without end": ("train.py", b"x = " + b"(" * 5000 + b")" * 5000),
    "a sum without end": ("train.py", b"x = " + b"1 + " * 20_000 + b"1\n"),
    "attributes without end": ("train.py", b"x = a" + b".b" * 50_000 + b"\n"),
    "calls of calls": ("train.py", b"x = f" + b"()" * 20_000 + b"\n"),
    "an elif without end": ("train.py", b"if a:\n    x = 1\n" + b"elif b:\n    x = 2\n" * 5000),
    "YAML brackets without end": ("config.yaml", b"a: " + b"[" * 40_000),
    "YAML lists in lists": ("config.yaml", b"- " * 20_000 + b"a\n"),
    "YAML questions in questions": ("config.yaml", b"? " * 20_000 + b"a\n"),
    "an alias bomb": ("config.yaml", b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (n + 1, n + 1, n, n, n) for n in range(97, 121))),
    "an alias bomb of nothing": ("config.yaml", b"a: &a {}\n" + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (n + 1, n + 1, n, n, n) for n in range(97, 121))),
    "an alias to itself": ("config.yaml", b"a: &a\n  b: *a\n"),
    "a merge of itself": ("config.yaml", b"a: &a\n  <<: *a\n"),
    "JSON without end": ("config.json", b'{"a": ' + b"[" * 200_000),
    "TOML without end": ("config.toml", b"a = " + b"[" * 100_000),
    "a number without end": ("config.json", b'{"a": ' + b"9" * 100_000 + b"}"),
    "many values": ("config.json", b'{"a": [' + b"{}," * 50_000 + b"{}]}"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_sentence_and_soon(tmp_path, what):
    name, content = REFUSED[what]
    (tmp_path / name).write_bytes(content)
    began = time.process_time()
    with pytest.raises(InputError) as caught:
        read(tmp_path, name)
    assert time.process_time() - began < SLOWEST_S
    said = str(caught.value)
    assert said.startswith(name)
    assert "\n" not in said
    assert len(said) < 400


SOUND = {
    "CRLF": ("train.py", b"LR = 1\r\nSFTConfig(\r\n  learning_rate=LR)\r\n"),
    "CR alone": ("train.py", b"LR = 1\rSFTConfig(learning_rate=LR)\r"),
    "a mark at the front": ("train.py", b"\xef\xbb\xbfSFTConfig(learning_rate=1)\n"),
    "Latin-1 that is declared": ("train.py", b"# coding: latin-1\nn = '\xe9'; SFTConfig(learning_rate=1)\n"),
    "a form feed": ("train.py", b"x = 2\n\x0c\nSFTConfig(learning_rate=1)\n"),
    "a mark and CRLF in YAML": ("config.yaml", b"\xef\xbb\xbflearning_rate: 1\r\nb: 2\r\n"),
    "tabs in JSON": ("config.json", b'{\n\t"learning_rate": 1\n}'),
    "a mark in JSON": ("config.json", b'\xef\xbb\xbf{"learning_rate": 1}'),
    "CRLF in TOML": ("config.toml", b"learning_rate = 1\r\n"),
    "names that double each other": (
        "train.py", b"a0 = [1]\n" + b"".join(b"a%d = [a%d, a%d]\n" % (n + 1, n, n) for n in range(60)) + b"SFTConfig(learning_rate=1, x=a60)\n"),
    "texts that double each other": (
        "train.py", b"a0 = 'x'\n" + b"".join(b"a%d = a%d + a%d\n" % (n + 1, n, n) for n in range(60)) + b"SFTConfig(learning_rate=1, x=a60)\n"),
    "numbers that square each other": (
        "train.py", b"a0 = 10\n" + b"".join(b"a%d = a%d * a%d\n" % (n + 1, n, n) for n in range(60)) + b"SFTConfig(learning_rate=1, x=a18)\n"),
    "names in circles of two ways": (
        "train.py", b"".join(b"a%d = a%d + a%d\n" % (n, (n + 1) % 30, (n + 2) % 30) for n in range(30)) + b"SFTConfig(learning_rate=1, x=a0)\n"),
    "many headers": ("train.py", b"# /// script\n" * 15_000 + b"SFTConfig(learning_rate=1)\n"),
    "a line of spaces in TOML": ("config.toml", b"learning_rate = 1\n[" + b" " * 50_000 + b"a]\nb = 1\n"),
    "many calls on one line": ("train.py", b"SFTConfig(learning_rate=1); " + b"f(a, b); " * 2_500 + b"\n"),
    "one name assigned often": ("train.py", b"a = 1\n" * 8_000 + b"f(a)\n" * 100 + b"SFTConfig(learning_rate=1)\n"),
    "many attributes": ("train.py", b"a.b = 1\n" * 2_000 + b"f(a.b)\n" * 2_000 + b"SFTConfig(learning_rate=1)\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", SOUND)
def test_what_is_only_unusual_is_read_and_soon(tmp_path, what):
    name, content = SOUND[what]
    (tmp_path / name).write_bytes(content)
    began = time.process_time()
    subject = read(tmp_path, name)
    assert time.process_time() - began < SLOWEST_S
    assert subject.number("learning_rate") == 1
    assert len(str(subject.settings)) < 200_000


def test_what_stands_behind_other_letters_is_quoted_as_written(tmp_path):
    (tmp_path / "train.py").write_text("x = '\u00e9\u4e2d'; SFTConfig(learning_rate=1 + 1)\n")
    assert read(tmp_path, "train.py").setting("learning_rate").text == "1 + 1"


def test_devices_pipes_folders_and_missing_files_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "tty.yaml").symlink_to("/dev/tty")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "zero.py", "tty.yaml", "loop.py", "folder.py", "none.py", "x" * 300 + ".py", "no\0name.py"):
        with pytest.raises(InputError):
            read(tmp_path, name)


def test_a_missing_file_is_said_to_be_missing_whatever_its_ending(tmp_path):
    for name in ("none.py", "none.yaml", "none"):
        with pytest.raises(InputError, match="there is no such file"):
            read(tmp_path, name)


HARMFUL = """
import os, pathlib
pathlib.Path("harmed").write_text("x")
os.system("touch harmed")
class Meta(type):
    def __new__(cls, *a):
        open("harmed", "w")
        return type.__new__(cls, *a)
class A(metaclass=Meta):
    x: open("harmed", "w")
@(lambda f: open("harmed", "w"))
def f(a=open("harmed", "w")): ...
open("harmed", "w")
SFTConfig(learning_rate=eval("open('harmed', 'w')"), output_dir=f"{open('harmed', 'w')}")
__import__("harmful")
"""

CHILD = """
import sys
from self_healing.cli.main import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "transformers", "trl", "numpy", "datasets", "accelerate", "harmful"} & set(sys.modules))
print("heavy:", heavy, "code:", code)
"""


def child(folder, *args):
    done = subprocess.run([sys.executable, "-c", CHILD, *args], cwd=folder, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    return done.stdout + done.stderr


TRL = """# /// script
# dependencies = ["trl>=0.24", "peft>=0.15", "torch>=2.4"]
# ///
import os
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer
MODEL = os.environ.get("MODEL", "Qwen/Qwen2.5-0.5B")
""" + "".join(f"# line {n}\n" for n in range(20)) + """
tokenizer = AutoTokenizer.from_pretrained(MODEL)
data = load_dataset("trl-lib/Capybara", split="train")
args = SFTConfig(output_dir="out", learning_rate=2e-5, per_device_train_batch_size=4, num_train_epochs=1)
trainer = SFTTrainer(model=MODEL, args=args, train_dataset=data, peft_config=LoraConfig(r=16), processing_class=tokenizer)
trainer.train()
"""  # fmt: skip


def test_a_script_that_would_do_harm_is_parsed_and_no_framework_is_imported(tmp_path):
    (tmp_path / "train.py").write_text(HARMFUL)
    (tmp_path / "harmful.py").write_text('open("harmed", "w")\n')
    (tmp_path / "good.py").write_text(TRL)
    said = child(tmp_path, "check", "--offline", "train.py", "good.py")
    assert "heavy: [] code:" in said, said
    assert "internal error" not in said
    assert "the check itself failed" not in said
    assert not (tmp_path / "harmed").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.py", "harmful.py", "train.py"]


def test_the_command_ends_with_2_and_one_sentence(tmp_path, capsys, monkeypatch):
    from self_healing.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(b"\xff\xfe\x00")
    assert main(["check", "--offline", "train.py"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1
