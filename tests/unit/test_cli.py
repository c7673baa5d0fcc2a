"""The command `heal`: shapes, exit codes, one sentence for every error, nothing heavy imported for help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from self_healing.cli import catalogue
from self_healing.cli.commands import demo, explain
from self_healing.cli.main import main
from self_healing.core.failure import Effect, FailureType, Severity

RULE_KEYS = {"name", "failure", "class", "severity", "summary", "options"}
ESCAPE = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e\x7f"


NOT_OFFERED_YET = {"can-reset-moments", "can-restart", "can-exclude-node"}
"""What no adapter's run can do so far; shorten it with every part."""


@pytest.fixture
def heal(capsys):
    """Run a command in this process; return its exit code and what it printed."""

    def run(*args):
        code = main([str(arg) for arg in args])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def process(*args, **environ):
    command = [sys.executable, "-m", "self_healing", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})


def loss_table(path, losses, name="loss"):
    path.write_text(f"step,{name}\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))
    return path


@pytest.fixture
def healthy(tmp_path):
    return loss_table(tmp_path / "healthy.csv", [2 + 0.01 * (i % 7) for i in range(100)])


@pytest.fixture
def sick(tmp_path):
    return loss_table(tmp_path / "sick.csv", [2 + 0.01 * (i % 7) for i in range(100)] + [50.0, 2.0])


def sentence(err):
    assert err.startswith("heal: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# --- help and start -----------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    code = (
        "import sys, io, contextlib\n"
        "from self_healing.cli.main import main\n"
        "for words in ([], ['--help'], ['--version'], *([name, '--help'] for name in sys.argv[1:])):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out: assert main(words) == 0, words\n"
        "    assert out.getvalue()\n"
        "heavy = 'torch numpy transformers trl datasets pandas rich self_healing.core.healer'.split()\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    names = ["rules", "explain", "replay", "demo"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_no_command_imports_a_framework(sick):
    code = (
        "import sys\nfrom self_healing.cli.main import main\n"
        "for words in (['rules'], ['rules', '--show-config'], ['explain', 'loss-spike'], ['replay', sys.argv[1]], ['demo', '--recorded']):\n"
        "    assert main(words) in (0, 1), words\n"
        "print([name for name in 'torch numpy transformers'.split() if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, sick], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


def test_the_real_command_speaks_for_itself(sick, tmp_path):
    shown = process("--version")
    assert re.fullmatch(r"heal \d+\.\d+\.\d+\n", shown.stdout)
    found = process("replay", sick)
    assert (found.returncode, found.stderr) == (1, "")
    assert "\x1b" not in found.stdout, "no colours when piped"
    assert max(map(len, found.stdout.splitlines())) <= 140
    assert process("replay", tmp_path / "missing").returncode == 2


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m self_healing rules | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_between_two_tables_is_no_error():
    script = """
import os, sys
reader, writer = os.pipe()
os.dup2(writer, 1)
from self_healing.cli.output import show, show_table
show("read")
os.close(reader)
show_table("not read", ["a"], [["b"]])
sys.exit(3)
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (3, "")


def test_the_log_level_comes_from_the_environment(heal, monkeypatch):
    monkeypatch.setenv("SELF_HEALING_LOG_LEVEL", "loud")
    code, _, err = heal("rules")
    assert code == 2
    assert "SELF_HEALING_LOG_LEVEL = 'loud'" in sentence(err)
    monkeypatch.setenv("SELF_HEALING_LOG_LEVEL", "info")
    assert heal("--version")[0] == 0


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["replay"], "Missing argument"),
        (["dance"], "No such command 'dance'"),
        (["rules", "--loud"], "No such option"),
        (["rules", "--set", "mode=heal"], "need --show-config"),
        (["rules", "--show-config", "--set", "mode=loud"], "mode"),
        (["rules", "--show-config", "--set", "modus=heal"], "mode"),
        (["rules", "--show-config", "--config", "/missing/healing.toml"], "/missing/healing.toml"),
        (["explain", "los-spike"], "loss-spike"),
        (["explain", "zzzzzz"], "nothing is called 'zzzzzz'"),
        (["replay", "/missing/file"], "there is no such file"),
        (["replay", "/missing/file", "--set", "rules.loss-spice.x=1"], "loss-spice"),
        (["replay", f"/missing/{ESCAPE}"], "there is no such file"),
    ],
)
def test_bad_usage_and_input_are_one_sentence_and_code_2(heal, words, expected):
    code, out, err = heal(*words)
    assert (code, out) == (2, "")
    assert expected in sentence(err)
    assert "internal error" not in err
    assert "\x1b" not in err


def test_debug_shows_the_traceback_wherever_it_stands(heal):
    for words in (["--debug", "replay", "/missing/file"], ["replay", "/missing/file", "--debug"]):
        code, _, err = heal(*words)
        assert code == 2
        assert "Traceback" in err
        assert "InputError" in err
    assert "Traceback" not in heal("replay", "--", "--debug")[2], "behind -- it is a file name"


def test_a_bug_of_ours_is_one_sentence_too(heal, monkeypatch, healthy):
    def broken(*args, **kwargs):
        raise RuntimeError("oh\nno")

    monkeypatch.setattr("self_healing.replay.replay", broken)
    code, _, err = heal("replay", healthy)
    assert code == 2
    assert "internal error, RuntimeError: oh no" in sentence(err)


# --- heal rules ---------------------------------------------------------------------------------------------------


def test_the_catalogue_as_json(heal):
    code, out, _ = heal("rules", "--json")
    data = json.loads(out)
    assert (code, data["v"]) == (0, 1)
    assert set(data) == {"v", "rules", "actions", "patterns", "causes", "checks"}
    assert {rule["name"] for rule in data["rules"]} == set(catalogue.rules())
    assert {action["name"] for action in data["actions"]} == set(catalogue.actions())
    for rule in data["rules"]:
        assert set(rule) == RULE_KEYS
        assert rule["failure"] in set(FailureType)
        assert rule["severity"] in {str(s) for s in Severity}
        assert "given" not in rule["options"]
        assert rule["summary"]
    for action in data["actions"]:
        assert action["effect"] in {str(e) for e in Effect}
        assert action["offered"] is (action["needs"] is None or action["needs"] not in NOT_OFFERED_YET)
    for pattern in data["patterns"]:
        assert pattern["failure"] in set(FailureType)


def test_the_catalogue_as_tables_cuts_nothing_off(heal, monkeypatch):
    code, out, err = heal("rules")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    names = (*catalogue.rules(), *catalogue.actions(), *catalogue.causes(), *catalogue.patterns(), *catalogue.checks())
    for name in names:
        assert name in words, name
    assert "adapter" in words, "what no adapter offers is marked"
    monkeypatch.setenv("COLUMNS", "60")
    assert "\u2026" not in out + heal("rules")[1], "cells are folded, not cut off"


def test_the_configuration_says_where_each_value_came_from(heal, tmp_path):
    toml = tmp_path / "healing.toml"
    toml.write_text('preset = "aggressive"\nmax_recovery_attempts = 7\n')
    code, out, err = heal("rules", "--show-config", "--config", toml, "--set", "mode=advise", "--json")
    assert (code, err) == (0, "")
    rows = {row["key"]: row for row in json.loads(out)["config"]}
    assert rows["mode"] == {"key": "mode", "value": "advise", "source": "command line"}
    assert rows["nan_patience"]["source"] == "preset aggressive"
    assert rows["max_recovery_attempts"]["value"] == 7
    assert "healing.toml:2" in rows["max_recovery_attempts"]["source"]
    assert rows["lr_factor"]["source"] == "default"
    assert "rules.loss-not-finite.patience" in rows
    _, table, _ = heal("rules", "--show-config", "--set", "mode=advise")
    assert re.search(r"mode\s+advise\s+command line", table)


def test_a_key_without_effect_is_said_on_stderr(heal):
    code, _, err = heal("rules", "--show-config", "--set", "zclip_enabled=false", "--set", "zclip_z_threshold=3")
    assert code == 0
    assert "zclip_z_threshold has no effect" in err


# --- heal explain -------------------------------------------------------------------------------------------------


def test_everything_in_the_catalogue_can_be_explained(heal):
    names = [*catalogue.rules(), *catalogue.actions(), *catalogue.causes(), *catalogue.patterns()]
    for name in names:
        code, out, _ = heal("explain", name, "--json")
        data = json.loads(out)
        assert (code, data["v"], data["name"]) == (0, 1, name)
        for page in data["entries"]:
            assert page["doc"]
            assert "".join(explain.as_markdown(page))
            for option in page.get("options", ()):
                assert option["doc"], f"{name}: {option['name']} has no docstring under its field"


def test_every_check_has_a_page():
    for name, check in catalogue.checks().items():
        page = explain._check(check)
        assert (page["kind"], page["name"]) == ("check", name)
        assert "Something is found in" in "".join(explain.as_markdown(page)), name


def test_a_page_holds_docs_options_remedy_and_examples(heal):
    code, out, _ = heal("explain", "Loss_Spike")
    assert code == 0
    for words in ("loss-spike (rule)", "Why it matters", "False alarms", "Options", "factor = 5.0", "Remedy", "roll-back",
                  "effect recipe", "Examples", "stays quiet", "fires at step"):  # fmt: skip
        assert words in out, words
    assert "learning-rate-too-low" in heal("explain", "dpo-at-chance")[1]
    assert "no adapter offers this yet" in heal("explain", "exclude-node")[1]
    assert "no adapter offers this yet" not in heal("explain", "roll-back")[1]


def test_the_page_of_a_check_says_what_should_be_true_why_and_shows_both(heal):
    code, out, _ = heal("explain", "odd_batch")
    assert code == 0
    for words in (
        "odd-batch (check)",
        "Something is found in",
        "Nothing is found in",
        "train.py",
        "--ignore odd-batch",
    ):
        assert words in out, words
    assert " ".join(catalogue.check_entry(catalogue.checks()["odd-batch"])["summary"].split()) in " ".join(out.split())
    _, out, _ = heal("explain", "host-memory-small")
    assert "memory_bytes=17179869184" in out
    assert "accelerate launch --num_processes 8 -m sft" in out
    code, _, err = heal("explain", "memory-to-small")
    assert (code, "memory-too-small" in err) == (2, True)


# --- heal replay --------------------------------------------------------------------------------------------------


def test_the_shape_of_a_replay(heal, sick, healthy):
    code, out, _ = heal("replay", sick, "--json")
    data = json.loads(out)
    assert code == 1
    assert set(data) == {"v", "healthy", "incidents", "plans", "decisions", "recording"}
    assert data["decisions"] == []
    assert (data["v"], data["healthy"]) == (1, False)
    assert all(set(i) == {"name", "failure", "severity", "step", "because"} for i in data["incidents"])
    assert all(set(p) == {"step", "incident", "actions", "effect"} for p in data["plans"])
    assert ("loss-spike", "warning", 100) in [(i["name"], i["severity"], i["step"]) for i in data["incidents"]]
    assert data["recording"]["exact"] is None
    code, out, _ = heal("replay", healthy, "--json")
    assert (code, json.loads(out)["healthy"], json.loads(out)["incidents"]) == (0, True, [])


def test_a_replay_for_people(heal, sick, healthy):
    code, out, _ = heal("replay", sick)
    assert code == 1
    assert "102 observations, 1 run" in out
    assert re.search(r"100\s+loss-spike\s+warning", out)
    code, out, _ = heal("replay", healthy)
    assert code == 0
    assert "Nothing wrong was found." in out


def test_several_files_make_one_table_and_the_worst_code(heal, sick, healthy, tmp_path):
    code, out, err = heal("replay", healthy, sick)
    assert (code, err) == (1, "")
    assert "2 files: 1 without warnings, 1 with, 0 unreadable." in out
    (tmp_path / "empty").touch()
    code, out, err = heal("replay", healthy, tmp_path / "empty", "--json")
    files = json.loads(out)["files"]
    assert code == 2
    assert files[0]["healthy"] is True
    assert "is empty" in files[1]["error"]
    assert "is empty" in sentence(err)


def test_a_threshold_changes_what_is_found(heal, sick):
    strict = ("--set", "rules.loss-spike.relative=100", "--set", "ignore=['gradient-explosion']")
    assert heal("replay", sick, *strict)[0] == 0
    toml = sick.with_suffix(".toml")
    toml.write_text("[rules.loss-spike]\nrelative = 100.0\n")
    assert heal("replay", sick, "--config", toml)[0] == 0


def test_escapes_from_a_file_never_reach_the_terminal(heal, tmp_path):
    name = f"loss{ESCAPE}[red]"
    path = tmp_path / f"x{ESCAPE}.json"
    values = [2.0] * 100 + [60.0]
    path.write_text(json.dumps({"log_history": [{"step": i, "loss": v, name: v} for i, v in enumerate(values)]}))
    bad = tmp_path / f"y{ESCAPE}.json"
    bad.write_text(json.dumps({name: 1}))
    for words in ([path], [path, "--json"], [path, bad], [path, bad, "--json"], [bad]):
        _, out, err = heal("replay", *words)
        inside = json.dumps(json.loads(out), ensure_ascii=False) if "--json" in words else ""
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out + err + inside), words


# --- heal demo ----------------------------------------------------------------------------------------------------


def test_the_recorded_demo_ends_well_and_is_always_the_same(heal):
    code, out, err = heal("demo", "--recorded")
    assert (code, err) == (0, "")
    for words in ("loss-spike", "loss-not-finite", "loss-divergence (error)", "roll-back", "Nothing was carried out"):
        assert words in out, words
    assert heal("demo", "--recorded")[1] == out
    data = json.loads(heal("demo", "--recorded", "--json")[1])
    spike = next(i for i in data["incidents"] if i["name"] == "loss-spike")
    climb = next(i for i in data["incidents"] if i["name"] == "loss-divergence")
    assert spike["step"] == 220
    assert 430 <= climb["step"] <= 445


@pytest.mark.parametrize("missing", ["torch", "trl"])
def test_without_the_frameworks_the_demo_says_what_to_install_and_what_can_be_had_without(missing, tmp_path):
    code = (
        "import sys; sys.modules[sys.argv[1]] = None; from self_healing.cli.main import main; sys.exit(main(['demo']))"
    )
    words = [sys.executable, "-c", code, missing]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stdout) == (2, "")
    said = sentence(done.stderr)
    for part in (
        f"needs {missing}: ",
        "pip install 'self-healing-training[hf]'",
        "heal demo --recorded",
        "heal replay FILE",
    ):
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_a_demo_needs_a_folder_of_its_own(heal, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "NEEDED", ())
    (tmp_path / "file").touch()
    assert "is not empty; name a new folder" in sentence(heal("demo", "--output", tmp_path)[2])
    assert "cannot be used as a folder" in sentence(heal("demo", "--output", tmp_path / "file")[2])
