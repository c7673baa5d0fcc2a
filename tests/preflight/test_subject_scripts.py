"""What a script stands for, read without running it: known where it is certain, unknown where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.subject import UNKNOWN, Kind, read_subject
from self_healing.preflight.subject.script import parse_script


def read(text, flags=None, environ=None):
    return parse_script(text.encode(), Path("train.py"), "train.py", flags, environ)


def subject_of(tmp_path, text, argv=()):
    (tmp_path / "train.py").write_text(text)
    return read_subject(["train.py"], list(argv), CheckOptions(), tmp_path)


def given(text, flags=None, environ=None):
    """Return what the call of `use` is given."""
    call = next(read(text, flags, environ).calls_of("use"))
    return call.arguments[0].value


PARSED = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
from trl import TrlParser, SFTConfig
import tyro

@dataclass
class ScriptArguments:
    model: str = field(default="org/base")
    rank: int = 16
    need: str = field(metadata={"help": "no default"})
"""
KNOWN = {
    "a constant of the module": ("LR = 1e-4\nuse(LR)", 1e-4),
    "a calculation": ("A = 2\nB = A * 8 // 4\nuse(B)", 4),
    "a chained assignment": ("a = b = 3\nuse(b)", 3),
    "the last of several assignments in a row": ("a = 1\na = 2\nuse(a)\na = 3", 2),
    "the same value on both ways": ("if x:\n    a = 1\nelse:\n    a = 1\nuse(a)", 1),
    "a constant in a class": ("class C:\n    lr = 1e-4\n    twice = lr * 2\nuse(C.twice)", 2e-4),
    "a constant of an inherited class": ("class A:\n    lr = 1\nclass B(A):\n    pass\nuse(B().lr)", 1),
    "a dict by its key": ('c = {"lr": 1}\nuse(c["lr"])', 1),
    "a dict that is set by subscript": ('c = {"lr": 1}\nc["lr"] = 2\nuse(c["lr"])\nc["lr"] = 3', 2),
    "a dict that is updated": ('c = dict(lr=1)\nc.update({"lr": 2}, wd=3)\nuse(c["wd"] + c["lr"])', 5),
    "a dict joined to another": ('a = {"x": 1}\nb = {**a, "y": 2} | {"x": 5}\nuse(b["x"])', 5),
    "a list that is appended to": ('t = ["q"]\nt.append("v")\nuse(t)', ["q", "v"]),
    "an unpacked tuple": ("a, b = 1, 2\nuse(b)", 2),
    "a path": ('from pathlib import Path\nuse(Path("out") / "run")', "out/run"),
    "an f-string": ('n = "x"\nuse(f"org/{n}-{1 + 1}")', "org/x-2"),
    "a default of the environment": ('import os\nuse(os.environ.get("M", "org/m"))', "org/m"),
    "a default behind or": ('import os\nuse(os.getenv("M") or "org/m")', "org/m"),
    "what a function gives back": ("def rate():\n    x = 2\n    return x * 3\nuse(rate())", 6),
    "a part of what a function gives back": ("def two():\n    return 1, 2\na, b = two()\nuse(b)", 2),
    "an option that a function parses": (
        'def parse():\n    p.add_argument("--lr", default=1e-4)\n    return p.parse_args()\noptions = parse()\nuse(options.lr)', 1e-4,
    ),
    "options as a dict": ('p.add_argument("--lr", default=1)\na = p.parse_args()\nuse(vars(a)["lr"])', 1),
    "a dataclass as a dict": (
        "from dataclasses import asdict\nclass S:\n    lr: float = 1\n    n: int = 2\ns = S(lr=3)\ns.n = 4\nuse(asdict(s))", {"lr": 3, "n": 4},
    ),
    "a model of pydantic as a dict": (
        "from pydantic import BaseModel\nclass S(BaseModel):\n    lr: float = 1\nuse(S().model_dump())", {"lr": 1},
    ),
    "the dict of an object": ("class S:\n    lr: float = 1\ns = S()\nuse(s.__dict__)", {"lr": 1}),
    "an argparse default": ('p.add_argument("--lr", default=1e-4)\nargs = p.parse_args()\nuse(args.lr)', 1e-4),
    "a switch of argparse": ('p.add_argument("--x", action="store_true")\nargs = p.parse_args()\nuse(args.x)', False),
    "a typer option": ("@app.command()\ndef main(lr: float = typer.Option(2e-4)):\n    use(lr)", 2e-4),
    "a typer default": ("import typer\ndef main(lr: float = 2e-4):\n    use(lr)\ntyper.run(main)", 2e-4),
    "a click option": (
        'import click\n@click.command()\n@click.option("--learning-rate", default=1e-5)\ndef main(learning_rate):\n    use(learning_rate)', 1e-5),
    "an argument of the only call": ("def main(lr, wd=0.1):\n    use(lr + wd)\nmain(1)", 1.1),
    "a field through HfArgumentParser": (PARSED + "parser = HfArgumentParser(ScriptArguments)\n"
                                         "script_args = parser.parse_args_into_dataclasses()[0]\nuse(script_args.model)",
                                         "org/base"),
    "a field through TrlParser": (PARSED + "def main(s, t):\n    use(s.rank)\nif __name__ == '__main__':\n"
                                  "    parser = TrlParser((ScriptArguments, SFTConfig))\n"
                                  "    script_args, training_args = parser.parse_args_and_config()\n"
                                  "    main(script_args, training_args)", 16),
    "a field through tyro": (PARSED + "cfg = tyro.cli(ScriptArguments)\nuse(cfg.model)", "org/base"),
    "a field of an object": (PARSED + "cfg = ScriptArguments(rank=8)\nuse(cfg.rank)", 8),
    "an attribute that is set": (PARSED + "cfg = ScriptArguments(rank=8)\ncfg.rank = 4\nuse(cfg.rank)", 4),
    "the only assignment, under a condition": ("if x:\n    a = 1\nuse(a)", 1),
    "two assignments that agree": ("if x:\n    a = 1\nelse:\n    a = 1\nuse(a)", 1),
    "assigned for sure what was imported": ("from m import a\na = 1\nuse(a)", 1),
    "a condition that is known": ("debug = False\nuse(1 if debug else 2)", 2),
}  # fmt: skip


@pytest.mark.parametrize("what", KNOWN)
def test_what_is_certain_is_known(what):
    text, value = KNOWN[what]
    assert given(text) == value


NOT_KNOWN = {
    "two values by a condition": "if x:\n    a = 1\nelse:\n    a = 2\nuse(a)",
    "imported, and assigned under a condition": "from m import a\nif x:\n    a = 1\nuse(a)",
    "imported, or assigned where that fails": "try:\n    from m import a\nexcept ImportError:\n    a = None\nuse(a)",
    "a function, or assigned": "if x:\n    a = 1\nelse:\n    def a(): ...\nuse(a)",
    "taken from a match, or assigned": "match x:\n    case [a]:\n        pass\n    case _:\n        a = 1\nuse(a)",
    "assigned again under a condition": "a = 1\nif x:\n    a = 2\nuse(a)",
    "assigned in a loop": "a = 1\nfor i in y:\n    a = i\nuse(a)",
    "added to": "a = 1\na += 1\nuse(a)",
    "changed by a function": "a = 1\ndef f():\n    global a\n    a = 2\nuse(a)",
    "changed by an inner function": "def f():\n    a = 1\n    def g():\n        nonlocal a\n        a = 2\n    use(a)",
    "a dict set under a condition": 'c = {"lr": 1}\nif x:\n    c["lr"] = 2\nuse(c["lr"])',
    "a dict changed inside": 'c = {"a": {"lr": 1}}\nc["a"]["lr"] = 2\nuse(c["a"])',
    "a list that is extended": "t = [1]\nt.extend(x)\nuse(t)",
    "an argument of two calls": "def main(lr):\n    use(lr)\nmain(1)\nmain(2)",
    "an argument of a function that is passed on": "def main(lr=1):\n    use(lr)\nmain()\nstart(main)",
    "a method like another": "class A:\n    def f(self, x=1):\n        use(x)\nclass B:\n    def f(self, x=2):\n        pass",
    "a variable of the environment": 'import os\nuse(os.environ["M"])',
    "a field without a default": PARSED + "a = tyro.cli(ScriptArguments)\nuse(a.need)",
    "a default of somebody else's class": PARSED + "a, t = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()\nuse(t.seed)",
    "an attribute set under a condition": PARSED + "c = ScriptArguments(rank=8)\nif x:\n    c.rank = 4\nuse(c.rank)",
    "assigned more often than is followed": "a = 1\n" * 150 + "use(a)",
    "names in a circle": "a = b\nb = a\nuse(a)",
    "a huge power": "use(9 ** 9 ** 9)",
    "a function that gives back two things": "def f():\n    if x:\n        return 1\n    return 2\nuse(f())",
    "a function that may give back nothing": "def f():\n    if x:\n        return 1\nuse(f())",
    "a generator": "def f():\n    yield 3\n    return 1\nuse(f())",
    "a function that is decorated": "@change\ndef f():\n    return 1\nuse(f())",
    "a function that calls itself": "def f():\n    return f()\nuse(f())",
    "the fields of a class that inherits others": "class S(TrainingArguments):\n    lr: float = 1\nuse(vars(S()))",
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_KNOWN)
def test_what_is_not_certain_is_unknown(what):
    assert given(NOT_KNOWN[what]) is UNKNOWN


def test_what_the_command_gives_goes_before_defaults():
    text = PARSED + "script_args = tyro.cli(ScriptArguments)\nuse(script_args.rank)"
    assert given(text, {"rank": 64}) == 64
    assert given("@app.command()\ndef main(lr: float = 1.0):\n    use(lr)", {"lr": 3.0}) == 3.0
    text = PARSED + "(a, t) = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()\nuse(t.seed)"
    assert given(text, {"seed": 7}) == 7


def test_what_a_job_sets_goes_before_defaults():
    assert given('import os\nuse(os.environ["M"])', environ={"M": "org/m"}) == "org/m"
    assert given('import os\nuse(os.getenv("M", "x"))', environ={"M": "org/m"}) == "org/m"


def test_names_are_resolved_through_aliases_and_stars():
    script = read(
        "import trl as t\nfrom trl import *\nfrom subprocess import run as go\nt.SFTConfig()\nDPOConfig()\ngo()\nprint()"
    )
    assert [call.name for call in script.calls] == ["trl.SFTConfig", "trl.DPOConfig", "subprocess.run", "print"]


def test_a_star_of_two_modules_says_nothing():
    script = read("from trl import *\nfrom peft import *\nDPOConfig()")
    assert script.calls[0].name == "DPOConfig"


def test_settings_after_construction_belong_to_the_class_of_the_object(tmp_path):
    text = (
        "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(learning_rate=1e-4)\nargs.learning_rate = 1e-3\n"
        "if x:\n    args.max_steps = 5\ntrainer = SFTTrainer(args=args)\n"
    )
    subject = subject_of(tmp_path, text)
    setting = subject.setting("learning_rate")
    assert (setting.value, setting.owner, setting.place.line) == (1e-3, "SFTConfig", 3)
    assert subject.setting("max_steps").value is UNKNOWN


def test_a_pad_token_that_is_set_can_be_found():
    script = read(
        "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('x')\ntok.pad_token = tok.eos_token\n"
        "model.config.use_cache = False\n"
    )
    found = [(each.target, each.name, each.value.text, each.maker) for each in script.attributes]
    assert found[0] == ("tok", "pad_token", "tok.eos_token", "transformers.AutoTokenizer")
    assert found[1][:3] == ("model.config", "use_cache", "False")


def test_the_config_that_a_trainer_is_given_counts_more_than_another(tmp_path):
    text = (
        "from trl import SFTConfig, SFTTrainer\nused = SFTConfig(learning_rate=1e-4)\n"
        "trainer = SFTTrainer(model='org/m', args=used)\nother = SFTConfig(learning_rate=9.0)\n"
    )
    subject = subject_of(tmp_path, text)
    assert subject.setting("learning_rate").value == 1e-4
    script = subject.scripts[0]
    assert script.maker_of(next(script.calls_of("SFTTrainer")), "args") == "trl.SFTConfig"


ENVIRONMENT = """
import os
from os import environ
a = os.environ["REQUIRED"]
b = os.getenv("PLAIN")
c = os.getenv("GIVEN", "x")
d = os.getenv("OTHER") or "x"
e = os.environ.get("TOKEN")
if not e:
    raise ValueError("TOKEN")
if "ASKED" in os.environ:
    f = environ["ASKED"]
try:
    g = environ["TRIED"]
except KeyError:
    g = None
os.environ["OWN"] = "1"
h = os.environ["OWN"]
"""


def test_the_variables_a_script_reads_and_how_carefully():
    found = {read.name: read for read in read(ENVIRONMENT).environment}
    assert [name for name, each in found.items() if each.is_required and not each.is_checked] == ["REQUIRED"]
    assert {name for name, each in found.items() if each.has_default} == {"GIVEN", "OTHER"}
    assert {name for name, each in found.items() if each.is_checked} == {"TOKEN", "ASKED", "TRIED"}
    assert (found["PLAIN"].is_checked, found["PLAIN"].target, found["PLAIN"].line) == (False, "b", 5)


def test_calls_of_other_programs_are_listed():
    script = read('import subprocess as s\nimport os\ns.run(["make"], check=True)\nos.system("x")\nprint()')
    assert [(call.name, call.line) for call in script.subprocess_calls()] == [("subprocess.run", 3), ("os.system", 4)]


REFERENCES = {
    'load_dataset("json", data_files={"train": "a.jsonl", "test": ["b.jsonl", "hf://x/c.json", "d*.json"]})': [
        (Kind.FILE, "a.jsonl"), (Kind.FILE, "b.jsonl")],
    'load_dataset("org/data", "en", split="train")': [(Kind.DATASET, "org/data")],
    'trainer.push_to_hub("end of training")': [],
    'model.push_to_hub("org/out")': [(Kind.OUTPUT_REPO, "org/out")],
    'trainer.save_model("out/final")\nAutoModel.from_pretrained("out/final")': [],
    'SFTConfig(output_dir="out")\nAutoModel.from_pretrained("out/checkpoint-5")': [],
    'PeftModel.from_pretrained(model, "org/adapter")': [(Kind.ADAPTER, "org/adapter")],
    'FastLanguageModel.from_pretrained(model_name="org/m")': [(Kind.MODEL, "org/m")],
    'snapshot_download("org/d", repo_type="dataset")': [(Kind.DATASET, "org/d")],
    'EncoderConfig(model="small", dataset_name="mine")': [],
    'LLM(model="org/m")': [(Kind.MODEL, "org/m")],
    'GRPOTrainer(model="org/m", reward_funcs="org/reward")': [(Kind.MODEL, "org/m"), (Kind.MODEL, "org/reward")],
    'GRPOTrainer("org/m", [short, "org/reward"])': [(Kind.MODEL, "org/m"), (Kind.MODEL, "org/reward")],
    "RLOOTrainer(model, reward_funcs=[short])": [],
    'LlamaTokenizerFast.from_pretrained("org/m")': [(Kind.TOKENIZER, "org/m")],
}  # fmt: skip


@pytest.mark.parametrize("text", REFERENCES)
def test_what_a_script_names_and_what_only_looks_like_a_name(tmp_path, text):
    assert [(each.kind, each.name) for each in subject_of(tmp_path, text).references] == REFERENCES[text]


def test_a_text_column_is_asked_for_where_the_data_stay_as_they_are(tmp_path):
    text = 'd = load_dataset("org/d")\nSFTConfig(dataset_text_field="body")\n'
    assert subject_of(tmp_path, text).references[0].columns == ("body",)
    assert subject_of(tmp_path, text + "d = d.map(f)\n").references[0].columns == ()


def test_a_header_ends_at_the_last_mark_of_its_comment():
    script = read("import x\n# /// script\n# dependencies = ['trl']\n# ///\n#\n# ///\ny = 1\n# ///\n")
    assert (script.header, script.header_line) == ("dependencies = ['trl']\n///\n", 2)
    assert read("# /// script\n# dependencies = []\n").header is None


def test_the_model_that_a_trainer_is_given_first_is_its_model(tmp_path):
    subject = subject_of(
        tmp_path, "from trl import SFTTrainer\nSFTTrainer('org/m', args=make())\nSFTTrainer(model, args=make())\n"
    )
    assert subject.setting("model").value == "org/m"
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.MODEL, "org/m")]
