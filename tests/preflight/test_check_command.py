"""`heal check` as a command: what it validates first, what it leaves out, and that no secret leaves with what it says."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from self_healing.cli.main import main
from self_healing.preflight.check import CannotRun
from self_healing.preflight.dry_run import fresh_env, isolating, judging, rewards, vllm_server
from self_healing.preflight.dry_run.events import read_events
from self_healing.preflight.dry_run.trying import HOOK
from self_healing.preflight.finding import Finding, Note, NotRun, Place, Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import OF_A_TRIAL, CheckReport, known_checks, run_checks
from self_healing.preflight.subject import Subject, read_subject
from self_healing.preflight.tools import Tools

OWN = "a-secret-of-no-usual-shape"
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"
URL = "https://me:pass-of-mine@example.org/x"
FAILS = "open('was-run', 'w').close()\nraise RuntimeError('broken')\n"


@pytest.fixture
def heal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def check(*words, files=()):
        for name, text in dict(files).items():
            (tmp_path / name).write_text(text)
        code = main(["check", "--offline", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return check


# -- which checks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_name_that_is_none_of_a_check_is_told_before_anything_is_run(heal, tmp_path, option):
    code, _, err = heal(option, "dry-runn", "--steps", 2, "--", sys.executable, "train.py", files={"train.py": FAILS})
    assert (code, "did you mean dry-run?" in err) == (2, True)
    assert not (tmp_path / "was-run").exists()


def test_what_a_trial_finds_is_selected_and_ignored_like_other_checks(heal, tmp_path):
    command = ("--steps", 2, "--", sys.executable, "train.py")
    code, out, _ = heal("--select", "dry-run", *command, files={"train.py": FAILS})
    assert (code, "[dry-run]" in out) == (1, True)
    ignored = [word for name in ("dry-run", *known_checks()) for word in ("--ignore", name)]
    code, out, _ = heal(*ignored, *command)
    assert (code, "[dry-run]" in out) == (0, False)
    (tmp_path / "was-run").unlink()
    code, out, _ = heal("--select", "odd-lora", *command)
    assert (code, "not run: dry-run: --select and --ignore" in out) == (0, True)
    assert not (tmp_path / "was-run").exists()
    _, out, _ = heal("--select", "reward-function", *command)
    assert "not run: reward-function: the dry run failed" in out


def test_the_names_that_may_be_ignored_are_those_that_a_trial_reports_under():
    assert set(OF_A_TRIAL) == {each.NAME for each in (judging, isolating, fresh_env, rewards, vllm_server)}


# -- secrets -----------------------------------------------------------------------------------------


def test_whatever_leaves_a_report_is_masked():
    report = run_checks(Subject(), Tools(options=CheckOptions(select=("odd-lora",)), environ={"MY_API_KEY": OWN}))
    for secret in (OWN, TOKEN, URL):
        where = Place(f"{secret}.py", key=f"--x {secret}")
        found = Finding(
            check="dry-run", severity=Severity.ERROR, where=where, message=f"m {secret}", fix=f"f {secret}\n{secret}"
        )
        report.add([found], [NotRun("isolate", f"because {secret}")], [Note("odd-lora", where, f"n {secret}")])
    said = f"{report}\n{json.dumps(report.to_json())}\n{report.findings} {report.notes}"
    assert not [each for each in (OWN, TOKEN, "pass-of-mine") if each in said]
    assert "***@example.org/x" in said


def test_the_output_of_a_trial_and_its_notes_are_masked(heal, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", OWN)
    text = f"print('{URL} {TOKEN}')\nraise RuntimeError('{OWN} {URL}')\n"
    code, out, err = heal("--steps", 2, "--", sys.executable, "train.py", "--hub_token", OWN, files={"train.py": text})
    assert (code, "RuntimeError: ***" in out) == (1, True)
    assert not [each for each in (OWN, TOKEN, "pass-of-mine") if each in out + err]


def test_what_a_check_says_of_its_own_is_not_masked():
    fix = 'Write token=os.environ["HF_TOKEN"], api_key=os.environ["WANDB_API_KEY"] or run `export WANDB_API_KEY=...` or --secrets HF_TOKEN'
    report = CheckReport()
    report.add([Finding(check="x", severity=Severity.INFO, where=Place("a.py"), message="m", fix=fix)], [])
    assert report.findings[0].fix == fix


# -- corrections -------------------------------------------------------------------------------------

INLINE = "script: |\n  # /// script\n  # dependencies = ['trl>=0.20,<2']\n  # ///\n  import cv2\n  import trl\nflavor: t4-small\n"


def test_a_script_that_stands_in_a_spec_is_left_alone_and_the_others_are_corrected(heal, tmp_path):
    other = "# /// script\n# dependencies = ['torch>=2,<3']\n# ///\nimport torch\nimport cv2\n"
    code, _, err = heal("job.yaml", "train.py", "--fix", files={"job.yaml": INLINE, "train.py": other})
    assert code == 1
    assert "job.yaml: its script stands in the spec and cannot be corrected there" in err
    assert "opencv-python-headless" in (tmp_path / "train.fixed.py").read_text()
    assert (tmp_path / "job.yaml").read_text() == INLINE


def test_a_script_that_cannot_be_corrected_neither_stops_the_others_nor_hides_what_was_found(heal, tmp_path):
    broken = "# /// script\n# dependencies = [\n# ///\nimport cv2\n"
    sound = "# /// script\n# dependencies = ['torch>=2,<3']\n# ///\nimport torch\nimport cv2\n"
    code, _, err = heal("a.py", "b.py", "--fix", files={"a.py": broken, "b.py": sound})
    assert (code, "mend this first" in err) == (1, True)
    assert (tmp_path / "b.fixed.py").exists()
    code, _, err = heal("a.py", "--fix", "--select", "odd-lora")
    assert (code, "mend this first" in err) == (2, True)


# -- the vLLM server ---------------------------------------------------------------------------------


def test_offline_a_vllm_server_is_asked_on_this_machine_only(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(vllm_server, "_asked", lambda url: asked.append(url) or b"{}")

    def ask(url, *, offline):
        words = ["trl", "grpo", "--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", url]
        return list(vllm_server.server_findings(read_subject([], words, CheckOptions(), tmp_path), offline=offline))

    for url in ("http://gpu-7:8000", "http://10.0.0.7:8000", "http://localhost.example.org"):
        with pytest.raises(CannotRun, match="leave out --offline"):
            ask(url, offline=True)
    assert asked == []
    for url in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        assert ask(url, offline=True) == []
    assert ask("http://gpu-7:8000", offline=False) == []
    assert len(asked) == 8
    monkeypatch.undo()
    [found] = ask("http://127.0.0.1:80a0", offline=True)
    assert "does not answer" in found.message


def test_a_vllm_server_that_is_not_asked_is_told_of_and_the_trial_is_made(heal, tmp_path):
    given = "use_vllm=True, vllm_mode='server', vllm_server_base_url='http://me:pass-of-mine@gpu-7:8000'"
    text = f"open('was-run', 'w').close()\ndef arguments():\n    from trl import GRPOConfig\n    return GRPOConfig({given})\n"
    words = ("--select", "dry-run", "--steps", 2, "--", sys.executable, "train.py")
    code, out, _ = heal("--select", "vllm-server", *words, files={"train.py": text})
    assert (code, "not run: vllm-server: the vLLM server at http://***@gpu-7:8000 is not on this machine" in out) == (
        0,
        True,
    )
    assert (tmp_path / "was-run").exists()
    _, out, _ = heal(*words)
    assert "vllm-server" not in out


# -- reward functions --------------------------------------------------------------------------------


@pytest.fixture
def looked(tmp_path, monkeypatch):
    """The hook's look at reward functions, and the events that come of it."""
    monkeypatch.syspath_prepend(str(HOOK))
    orders = tmp_path / "orders.json"
    events = tmp_path / "events.jsonl"
    orders.write_text(json.dumps({"events": str(events)}))
    monkeypatch.setenv("SELF_HEALING_DRY_RUN", str(orders))
    monkeypatch.delenv("RANK", raising=False)
    from self_healing_dry_run import rewards as hook
    from self_healing_dry_run.telling import orders as read_orders

    read_orders.cache_clear()

    def look(rows, *functions):
        trainer = SimpleNamespace(reward_funcs=list(functions), train_dataset=rows, state=None)
        hook.look_at(trainer)
        return trainer

    look.events = lambda: read_events(events)
    yield look
    read_orders.cache_clear()


@pytest.mark.parametrize(("returned", "said"), [(None, "None"), (1.0, "1.0"), (["good"], "['good']")])
def test_a_reward_function_that_returns_no_numbers_is_a_finding(looked, returned, said):
    def exact(prompts, completions, **_):
        return returned

    trainer = looked([{"prompt": "1+1", "answer": "2"}], exact)
    assert trainer.reward_funcs[0](prompts=["1+1"], completions=["2"]) == returned
    [found] = rewards.reward_findings(looked.events(), Subject())
    assert (str(found.severity), found.check) == ("error", "reward-function")
    assert f"exact returns {said} on the answers in column answer" in found.message
    assert list(rewards.not_tried(looked.events())) == []


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "1+1", "topic": "sums"}, "no column holds them as texts (completion, answer, "),
        ({"prompt": "1+1", "answer": 2}, "the data set that reaches the trainer has only answer, prompt"),
        ({"question": "1+1", "answer": "2"}, "there is no column prompt; "),
        (None, "has no rows"),
    ],
)
def test_reward_functions_that_cannot_be_tried_are_told_once_for_each_reason(looked, row, why):
    def exact(completions, **_):
        return [1.0] * len(completions)

    def short(completions, **_):
        return [1.0] * len(completions)

    looked([row] if row else [], exact, short)
    (told,) = rewards.not_tried(looked.events())
    assert told.check == "reward-function"
    assert told.because.startswith("exact, short: not called with known answers: ")
    assert why in told.because


def test_an_async_reward_function_is_left_as_it_is_and_told_not_to_be_tried(looked):
    async def judge(completions, **_):
        return [1.0] * len(completions)

    trainer = looked([{"prompt": "1+1", "answer": "2"}], judge)
    assert trainer.reward_funcs == [judge]
    (told,) = rewards.not_tried(looked.events())
    assert told.because.startswith("judge: neither called with known answers nor listened to, because it is async")
