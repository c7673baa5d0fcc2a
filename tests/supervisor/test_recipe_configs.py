"""Values in YAML, JSON and TOML files: found by name, changed in a copy that differs by nothing else."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import NoRoom, Recipe, Role

from .recipes import behind, copied, value, with_config

YAML = """\
# The recipe of the paper.

defaults: &d
    seed:   1        # odd spacing stays
    tags: [a,   b]
training:
    learning_rate: 2e-4   # tuned
    meta_batch_size: 32
    text: "a long line that a round trip would fold: LONG"
    schedule: {kind: steps, constant_product: 500}
evaluation: {batch_size: 64, lr: 1}
""".replace("LONG", "word " * 60)


def test_a_copy_of_yaml_differs_by_the_values_only(tmp_path):
    recipe = with_config(tmp_path, "configs/config.yaml", YAML)
    lower = recipe.with_less_rate(1.5, 1e-6).with_less_batch(1.5, 1)
    expected = YAML.replace("2e-4", "1.33333e-04").replace(": 32", ": 21").replace("500", "333")
    assert copied(lower, tmp_path).decode() == expected
    assert (tmp_path / "configs/config.yaml").read_text() == YAML
    assert [change.text() for change in lower.changes] == [
        "learning_rate: 2.00e-04 -> 1.33e-04",
        "meta_batch_size: 32 -> 21",
        "constant_product: 500 -> 333",
    ]


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
@pytest.mark.parametrize("mark", ["\ufeff", ""])
@pytest.mark.parametrize("last", ["", "\n"])
def test_line_ends_byte_order_mark_and_last_line_stay(tmp_path, ends, mark, last):
    texts = {
        "c.yaml": "# \u00fc\n---\ntraining:\n  lr: 3e-4\n  x: 1",
        "c.json": '{\n\t"\u00fc": 1,\n\t"training": {"lr": 3e-4}\n}',
        "c.toml": "# \u00fc\n[training]\nlr = 3e-4 # tuned\nx = 1",
    }
    for name, text in texts.items():
        content = (mark + (text + last).replace("\n", ends)).encode()
        lower = with_config(tmp_path, name, content).with_less_rate(1.5, 0)
        assert copied(lower, tmp_path) == content.replace(b"3e-4", b"2.0e-04"), name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lr: 3e-4", "lr: 2.0e-04"),
        ("lr:    3.0e-4#no comment: ignored", None),
        ("lr: 3.0e-4  # a comment", "lr: 2.0e-04  # a comment"),
        ('lr: "3e-4"', 'lr: "2.0e-04"'),
        ("lr: '3e-4'", "lr: '2.0e-04'"),
        ("lr: !!float 3e-4", "lr: !!float 2.0e-04"),
        ("lr: &rate 3e-4\nother: *rate", "lr: &rate 2.0e-04\nother: *rate"),
        ("base: &rate 3e-4\nopt: {lr: *rate}", "base: &rate 2.0e-04\nopt: {lr: *rate}"),
        ("base: &b {lr: 3e-4}\nopt:\n  <<: *b\n  x: 1", "base: &b {lr: 2.0e-04}\nopt:\n  <<: *b\n  x: 1"),
        ("a: {lr: ${b}}\nb: 3e-4", None),
        ('a: {lr: "${b}"}\nb: 3e-4', 'a: {lr: "${b}"}\nb: 2.0e-04'),
        ("a: {lr: '${.b}', b: 3e-4}", "a: {lr: '${.b}', b: 2.0e-04}"),
        ("a:\n  lr: ${c.d}\nc:\n  d: 3e-4", "a:\n  lr: ${c.d}\nc:\n  d: 2.0e-04"),
        ("runs:\n- lr: 3e-4\n- x: 1", "runs:\n- lr: 2.0e-04\n- x: 1"),
        ("- lr: 3e-4", "- lr: 2.0e-04"),
        ("? lr\n: 3e-4", "? lr\n: 2.0e-04"),
        ("{lr: 3e-4,x: [1,2]}", "{lr: 2.0e-04,x: [1,2]}"),
        ("learning-rate: 3e-4", "learning-rate: 2.0e-04"),
        ("lr: +3.0E-4", "lr: 2.0e-04"),
        ("--- \nlr: 3e-4\n...\n", "--- \nlr: 2.0e-04\n...\n"),
        ("lr: &a 3e-4\nb: &a 1\nc: *a", "lr: &a 2.0e-04\nb: &a 1\nc: *a"),
        ("cycle: &c [*c]\nlr: 3e-4", "cycle: &c [*c]\nlr: 2.0e-04"),
        ("x: !custom {y: 1}\nlr: 3e-4", "x: !custom {y: 1}\nlr: 2.0e-04"),
        ("text: |\n  lr: 1\n  lr: 2\nlr: 3e-4", "text: |\n  lr: 1\n  lr: 2\nlr: 2.0e-04"),
    ],
)
def test_odd_forms_of_yaml_are_read_and_kept(tmp_path, before, after):
    try:
        lower = with_config(tmp_path, "c.yaml", before).with_less_rate(1.5, 0)
    except ConfigError:
        lower = None
    if after is None:
        assert not isinstance(lower, Recipe)
    else:
        assert copied(lower, tmp_path).decode() == after


@pytest.mark.parametrize(
    "text", ["lr:", "lr: null", "lr: >\n  3e-4", "lr: [1e-3, 1e-4]", "lr: {value: 1}", "lr: ${gone}"]
)
def test_a_yaml_value_that_is_no_number_is_no_error_until_it_is_needed(tmp_path, text):
    recipe = with_config(tmp_path, "c.yaml", text)
    answer = recipe.with_less_rate(1.5, 0)
    assert isinstance(answer, NoRoom)
    assert answer.reason.startswith("lr in c.yaml ")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.yaml", "a: 1\n\tb: 2", r"^c\.yaml:2: is not valid YAML: "),
        ("c.yaml", "a: [1", r"^c\.yaml:1: is not valid YAML: "),
        ("c.yaml", "a: 1\n---\nb: 2", r"^c\.yaml:3: holds several YAML documents"),
        ("c.yaml", "a: *gone", r"^c\.yaml:1: is not valid YAML: found undefined alias"),
        ("c.yaml", "a: \x07", r"^c\.yaml: is not valid YAML: "),
        ("c.yaml", b"a: 1\nb: \xff", r"^c\.yaml:2: is not UTF-8 text$"),
        ("c.yaml", "lr: 1\nx: 2\nlr: 3", r"^lr \(c\.yaml, line 3\) stands there twice \(lines 1 and 3\); keep one$"),
        ("c.yaml", "[" * 500, r"^c\.yaml: is nested too deeply$"),
        ("c.yaml", "x: " + "1" * (1 << 20), r"^c\.yaml: cannot be read: larger than"),
        ("c.json", '{"a": 1,}', r"^c\.json:1: is not valid JSON: "),
        ("c.json", '{\n "a": 1', r"^c\.json:2: is not valid JSON: "),
        ("c.json", "", r"^c\.json:1: is not valid JSON: "),
        ("c.json", '{"lr": 1,\n "lr": 2}', r"^lr \(c\.json, line 2\) stands there twice \(lines 1 and 2\); keep one$"),
        ("c.json", "[" * 100_000, r"^c\.json: is nested too deeply$"),
        ("c.toml", "a = ", r"^c\.toml: is not valid TOML: "),
        ("c.toml", "lr = 1\nlr = 2", r"^c\.toml: is not valid TOML: "),
        ("c.toml", "a = " + "[" * 5000, r"^c\.toml: is not valid TOML: "),
        ("c.cfg", "lr=1", r"^c\.cfg: a config must end with \.yaml, \.yml, \.toml or \.json"),
        ("c", "lr=1", r"^c: a config must end with"),
    ],
)
def test_a_config_that_is_not_what_it_says_is_an_error_at_once(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        with_config(tmp_path, name, text)
    assert "\n" not in str(caught.value)


def test_aliases_that_multiply_are_refused_quickly(tmp_path):
    lines = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="holds more than 20,000 values"):
        with_config(tmp_path, "c.yaml", "\n".join(lines))


def test_a_key_that_stands_twice_is_no_matter_where_nobody_changes_it(tmp_path):
    assert value(with_config(tmp_path, "c.json", '{"x": 1, "x": 2, "lr": 3}'), Role.RATE) == 3
    assert value(with_config(tmp_path, "c.yaml", "x: 1\nx: 2\nlr: 3"), Role.RATE) == 3
    recipe = with_config(tmp_path, "c.json", '{"a": {"lr": 3}, "a": {"x": 1}, "learning_rate": 5}')
    assert recipe.settings(Role.RATE)[0].key == "learning_rate"


@pytest.mark.parametrize("empty", ["", "# nothing\n", "~", "just text", "[]"])
def test_a_config_without_values_is_no_error(tmp_path, empty):
    answer = with_config(tmp_path, "c.yaml", empty).with_less_rate(1.5, 0)
    assert isinstance(answer, NoRoom)
    assert "no learning rate was found in the command and c.yaml" in answer.reason


def test_json_keeps_its_layout(tmp_path):
    text = '{"a":[1,2,{"lr"  :3e-4}],\n   "s":"\\"lr\\": 7","batch_size":32 , "q": "8", "num_workers": "4"}'
    lower = with_config(tmp_path, "c.json", text).with_less_rate(1.5, 0).with_less_batch(1.5, 1).with_fewer_workers()
    expected = text.replace("3e-4", "2.0e-04").replace(":32 ", ":21 ").replace('"4"', '"2"')
    assert copied(lower, tmp_path).decode() == expected
    assert json.loads(expected)["a"][2] == {"lr": 2e-4}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lr = 3e-4 # tuned\n", "lr = 2.0e-04 # tuned\n"),
        ("training.lr = 3e-4\ntraining.x = 1\n", "training.lr = 2.0e-04\ntraining.x = 1\n"),
        ("[a]\n  lr=3e-4\n\n[b]\nx = 1\n[a.c]\ny = 2\n", "[a]\n  lr=2.0e-04\n\n[b]\nx = 1\n[a.c]\ny = 2\n"),
        ("o = {lr = 3e-4, x = [1, 2]}\n", "o = {lr = 2.0e-04, x = [1, 2]}\n"),
        ("[[runs]]\nlr = 3e-4\n\n[[runs]]\nx = 1\n", "[[runs]]\nlr = 2.0e-04\n\n[[runs]]\nx = 1\n"),
        ("runs = [{lr = 3e-4}, {x = 1}]\n", "runs = [{lr = 2.0e-04}, {x = 1}]\n"),
        ('lr = "3e-4"\n', 'lr = "2.0e-04"\n'),
        ("lr = 3e-4\nx = nan\nd = 1979-05-27\n", "lr = 2.0e-04\nx = nan\nd = 1979-05-27\n"),
        ('"learning-rate" = 3e-4\n', '"learning-rate" = 2.0e-04\n'),
        ("lr = 3e-4\nbatch_size = 1_000\n", "lr = 2.0e-04\nbatch_size = 1_000\n"),
        ("[a.b]\nx = 1\n[a]\nlr = 3e-4\n[a.d]\ny = 1\n", "[a.b]\nx = 1\n[a]\nlr = 2.0e-04\n[a.d]\ny = 1\n"),
    ],
)
def test_toml_keeps_comments_and_layout(tmp_path, before, after):
    lower = with_config(tmp_path, "c.toml", before).with_less_rate(1.5, 0)
    assert copied(lower, tmp_path).decode() == after


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "runs:\n- lr: 1\n- lr: 1\n"),
        ("c.json", '{"runs": [{"lr": 1}, {"lr": 1}]}'),
        ("c.toml", "[[runs]]\nlr = 1\n[[runs]]\nlr = 1\n"),
    ],
)
def test_in_a_list_of_configs_the_one_that_is_meant_is_asked_for(tmp_path, name, text):
    words = r"^learning rate: runs\.0\.lr \(.*\) and runs\.1\.lr \(.*\) could be meant; say which with --lr-key runs\.0\.lr$"
    with pytest.raises(ConfigError, match=words):
        with_config(tmp_path, name, text)
    lower = with_config(tmp_path, name, text, lr_key="runs.1.lr").with_less_rate(2, 0)
    changed = copied(lower, tmp_path).decode()
    read = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}[name[2:]]
    assert [run["lr"] for run in read(changed)["runs"]] == [1, 0.5]


def test_merged_keys_are_found_under_the_table_that_merges_them(tmp_path):
    text = "base: &b {peak: 3e-4, x: 1}\nfirst:\n  <<: *b\nsecond:\n  <<: [*b]\n  peak: 9e-4\n"
    first = with_config(tmp_path, "c.yaml", text, lr_key="first.peak").with_less_rate(1.5, 0)
    assert copied(first, tmp_path).decode() == text.replace("3e-4", "2.0e-04")
    second = with_config(tmp_path, "c.yaml", text, lr_key="second.peak").with_less_rate(1.5, 0)
    assert copied(second, tmp_path).decode() == text.replace("9e-4", "6.0e-04")


def test_two_rates_or_batches_in_a_file_are_a_question(tmp_path):
    text = "optimizer: {lr: 1e-3}\noptimizer_d: {lr: 1e-4}\n"
    with pytest.raises(ConfigError, match=r"optimizer\.lr \(c\.yaml, line 1\) and optimizer_d\.lr \(c\.yaml, line 2\)"):
        with_config(tmp_path, "c.yaml", text)
    assert value(with_config(tmp_path, "c.yaml", text, lr_key="optimizer_d.lr"), Role.RATE) == 1e-4
    with pytest.raises(ConfigError, match=r"^--lr-key lr: .* match; write more of the key$"):
        with_config(tmp_path, "c.yaml", text, lr_key="lr")
    with pytest.raises(
        ConfigError, match=r"^batch size: .* could be meant; say which with --batch-key micro_batch_size$"
    ):
        with_config(tmp_path, "c.yaml", "micro_batch_size: 1\ntrain_batch_size: 8")


def test_the_command_outranks_the_file(tmp_path):
    text = "optimizer: {lr: 1e-3}\noptimizer_d: {lr: 1e-4}\nbatch_size: 8\n"
    recipe = with_config(
        tmp_path, "c.yaml", text, "--lr", "3e-4", "data.batch_size=4", "batch_size=9", batch_key="batch_size"
    )
    lower = recipe.with_less_rate(1.5, 0).with_less_batch(1.5, 1)
    launch = lower.prepared(2)
    assert behind(launch) == ["--config", "c.yaml", "--lr", "2.0e-04", "data.batch_size=4", "batch_size=6"]
    assert launch.temporary == ()
    other = with_config(tmp_path, "c.yaml", text, "--learning_rate", "3e-4").with_less_rate(1.5, 0)
    assert behind(other.prepared(2))[2:] == ["--learning_rate", "2.0e-04"]
    dotted = with_config(tmp_path, "c.yaml", "model: {init_args: {lr: 1}}", "--model.lr", "3e-4").with_less_rate(1.5, 0)
    assert behind(dotted.prepared(2))[2:] == ["--model.lr", "2.0e-04"]
    with pytest.raises(
        ConfigError, match=r"optimizer_d\.lr \(on the command line\) and optimizer\.lr \(c\.yaml, line 1\)"
    ):
        with_config(tmp_path, "c.yaml", text, "optimizer_d.lr=3e-4")


def test_a_value_that_follows_another_is_changed_where_the_command_sets_that(tmp_path):
    text = "base: 1\nopt: {lr: '${base}'}"
    lower = with_config(tmp_path, "c.yaml", text, "base=3e-4").with_less_rate(1.5, 0)
    assert behind(lower.prepared(2))[2:] == ["base=2.0e-04"]
    lower = with_config(tmp_path, "c.yaml", text, "base=1", "opt.lr=3e-4").with_less_rate(1.5, 0)
    assert behind(lower.prepared(2))[2:] == ["base=1", "opt.lr=2.0e-04"]


def test_the_place_of_the_config_in_a_command_is_filled_in_everywhere(tmp_path):
    recipe = with_config(tmp_path, "a b/c.yaml", "lr: 1", "--config={config}", "@{config}")
    assert behind(recipe.prepared(1)) == ["--config", "a b/c.yaml", "--config=a b/c.yaml", "@a b/c.yaml"]
    launch = recipe.with_less_rate(2, 0).prepared(2)
    assert behind(launch) == [a.replace("a b/c.yaml", str(launch.config)) for a in behind(recipe.prepared(1))]


def test_a_checkpoint_goes_into_the_config_where_its_key_is_there(tmp_path):
    checkpoint = 'out/it\'s "5"'
    for name, text, read in (
        ("c.yaml", "resume_from_checkpoint: null\nlr: 1", yaml.safe_load),
        ("c.yaml", "resume_from_checkpoint:\nlr: 1", yaml.safe_load),
        ("c.yaml", "lr: 1\nresume_from_checkpoint:  # none yet", yaml.safe_load),
        ("c.yaml", "lr: 1\r\nresume_from_checkpoint:\r\n", yaml.safe_load),
        ("c.yaml", "lr: 1\nresume_from_checkpoint:", yaml.safe_load),
        ("c.yaml", "{resume_from_checkpoint: , lr: 1}", yaml.safe_load),
        ("c.yaml", "t: {resume_from_checkpoint: '', lr: 1}", lambda text: yaml.safe_load(text)["t"]),
        ("c.json", '{"resume_from_checkpoint": null, "lr": 1}', json.loads),
        ("c.toml", "resume_from_checkpoint = false\nlr = 1", tomllib.loads),
    ):
        recipe = with_config(tmp_path, name, text).with_checkpoint(checkpoint)
        assert read(copied(recipe, tmp_path).decode()) == {"resume_from_checkpoint": checkpoint, "lr": 1}, text
        assert recipe.changes[0].text().endswith(f"-> {checkpoint}")


def test_a_key_of_the_config_is_used_before_a_flag_of_the_script(tmp_path):
    fields = "HfArgumentParser(TrainingArguments)  # resume_from_checkpoint"
    recipe = with_config(tmp_path, "c.yaml", "resume_from_checkpoint: null", text=fields).with_checkpoint(Path("out/5"))
    assert copied(recipe, tmp_path) == b'resume_from_checkpoint: "out/5"'


def test_what_a_recipe_prints_of_itself_holds_no_config(tmp_path):
    assert "hidden" not in repr(with_config(tmp_path, "c.yaml", "lr: 1\ntoken: hidden"))


def test_a_child_reads_numbers_from_every_format(tmp_path):
    script = (
        "import json, sys, tomllib, yaml; p = sys.argv[2]; t = open(p).read()\n"
        "c = yaml.safe_load(t) if 'yaml' in p else json.loads(t) if 'json' in p else tomllib.loads(t)\n"
        "print(repr(c['training']['lr']), repr(c['training']['batch_size']))"
    )
    texts = {
        "c.yaml": "training:\n  lr: 2e-5\n  batch_size: 32",
        "c.json": '{"training": {"lr": 2e-5, "batch_size": 32}}',
        "c.toml": "[training]\nlr = 2e-5\nbatch_size = 32",
    }
    for name, text in texts.items():
        recipe = with_config(tmp_path, name, text, text=script)
        launch = recipe.with_less_rate(2, 0).with_less_batch(1.5, 1).prepared(2)
        done = subprocess.run(launch.argv, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["1e-05", "21"], name
