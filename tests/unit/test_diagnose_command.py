"""`heal diagnose`: its three outputs, its exit codes, and that nothing from a log reaches a terminal or a page raw."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys

import pytest

from self_healing.cli.main import main
from self_healing.core.failure import FINE_CLASSES, Severity
from self_healing.diagnosis import Finding, InputReport
from self_healing.diagnosis.as_markdown import as_markdown
from self_healing.diagnosis.privacy import Discreet

FINDING_KEYS = [
    "name",
    "class",
    "severity",
    "step",
    "line",
    "evidence",
    "because",
    "also_possible",
    "fix",
    "references",
]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
)
ESCAPES = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e"
NASTY = "RuntimeError: CUDA error: device-side assert triggered <script>alert(1)</script> @everyone `code` **x**\n"


@pytest.fixture
def heal(capsys):
    def run(*args):
        code = main(["diagnose", *map(str, args)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def state(path, losses, evals=(), **more):
    """Write a `trainer_state.json` with one log every ten steps."""
    history = [{"step": 10 * i, "loss": loss, "epoch": i / 20} for i, loss in enumerate(losses, 1)]
    history += [{"step": 100 * i, "eval_loss": value} for i, value in enumerate(evals, 1)]
    history.sort(key=lambda entry: entry["step"])
    path.write_text(json.dumps({"log_history": history, **more}))
    return path


def falling(count=60, start=2.0, end=1.0):
    return [end + (start - end) * math.exp(-i / 15) + 0.01 * math.sin(i * i) for i in range(count)]


@pytest.fixture
def healthy(tmp_path):
    return state(tmp_path / "healthy.json", falling(), evals=[1.5, 1.3, 1.2, 1.15, 1.13, 1.12])


@pytest.fixture
def sick(tmp_path):
    return state(tmp_path / "sick.json", falling(end=0.2), evals=[1.5, 1.3, 1.35, 1.45, 1.6, 1.8])


@pytest.fixture
def crashed(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("".join(f"{{'loss': {x:.4f}, 'epoch': {i / 20}}}\n" for i, x in enumerate(falling(), 1)) + OOM)
    return path


def document(out):
    made = json.loads(out)
    assert list(made) == ["v", "inputs"]
    assert made["v"] == 1
    for entry in made["inputs"]:
        assert list(entry) == ["path", "format", "healthy", "findings"]
        for finding in entry["findings"]:
            assert list(finding) == FINDING_KEYS
            assert finding["class"] in FINE_CLASSES
            assert finding["severity"] in ("info", "warning", "error")
            assert all(
                isinstance(item, str)
                for key in ("evidence", "also_possible", "fix", "references")
                for item in finding[key]
            )
            assert finding["because"]
    return made["inputs"]


def test_a_healthy_run_is_called_so(heal, healthy):
    code, out, err = heal(healthy)
    assert code == 0
    assert out.startswith(f"{healthy} (trainer-state): healthy\n")
    assert not err


def test_findings_are_short_first_and_whole_with_v(heal, sick):
    code, short, _ = heal(sick)
    assert code == 1
    assert "overfitting at step 200" in short
    assert "load_best_model_at_end" in short
    assert "evidence" not in short
    _, whole, _ = heal("-v", sick)
    assert "evidence: evaluation loss: 1.5, 1.3, 1.35, 1.45, 1.6, 1.8" in whole
    assert "also possible" in whole


def test_json_has_the_documented_shape(heal, sick, crashed, healthy):
    code, out, _ = heal("--json", sick, crashed, healthy)
    assert code == 1
    overfitted, ran_out, fine = document(out)
    assert overfitted["findings"][0]["class"] == "overfitting"
    assert ran_out["findings"][0]["class"] == "oom_gpu"
    assert ran_out["findings"][0]["line"] == 61
    assert ran_out["format"] == "log"
    assert (fine["healthy"], fine["findings"]) == (True, [])
    assert (overfitted["healthy"], ran_out["healthy"]) == (False, False)


def test_an_input_that_cannot_be_used_is_told_and_exits_with_2(heal, healthy, tmp_path):
    cut = tmp_path / "cut.json"
    cut.write_text(healthy.read_text()[:500])
    code, out, err = heal("--json", healthy, cut, tmp_path / "missing")
    assert code == 2
    assert not err
    fine, broken, absent = document(out)
    assert fine["healthy"]
    assert broken["findings"][0]["class"] == "truncated"
    assert not broken["healthy"]
    assert "no such file" in absent["findings"][0]["because"]


def test_only_information_exits_with_0(heal, tmp_path):
    losses = falling(100)
    losses[40] += 5.0
    code, out, _ = heal("--json", state(tmp_path / "spike.json", losses))
    assert code == 0
    (entry,) = document(out)
    assert entry["healthy"]
    assert [f["class"] for f in entry["findings"]] == ["loss_spike"]
    assert "got over it" in entry["findings"][0]["because"]
    _, short, _ = heal(tmp_path / "spike.json")
    assert "got over it" in short
    assert "    - " not in short, "what is over needs no fix"


@pytest.mark.parametrize("given", [["--json", "--markdown", "x"], ["-", "-"], []])
def test_contradictory_arguments_are_refused(heal, given):
    code, _, err = heal(*given)
    assert code == 2
    assert err.startswith("heal: ")


def test_nothing_of_a_log_moves_the_terminal_or_becomes_markup(heal, tmp_path):
    path = tmp_path / "nasty.log"
    path.write_text(ESCAPES + NASTY)
    for option in ("-v", "--json", "--markdown"):
        code, out, _ = heal(option, path)
        assert code == 1
        assert "device_assert" in out
        assert not any(mark in out for mark in ESCAPES if mark not in "[]0;owned2J31m")
    _, as_json, _ = heal("--json", path)
    assert "<" not in as_json
    assert "<script>" in document(as_json)[0]["findings"][0]["evidence"][0]
    _, markdown, _ = heal("--markdown", path)
    outside = "\n".join(part for i, part in enumerate(markdown.split("```")) if i % 2 == 0)
    assert "<script>" not in outside
    assert "@everyone" not in outside


def test_sentences_are_no_markup_either():
    nasty = "a <b>c</b> & *d* _e_ [f](g) @team #1 | `h`"
    finding = Finding(
        name="x", fine="nan_loss", severity=Severity.ERROR, because=nasty, fix=(nasty,), references=("https://a.b/c_d",)
    )
    made = as_markdown([InputReport(path="a<b>.log", format="log", findings=[finding])], Discreet({}, for_others=True))
    for raw in ("<b>", "@team", " *d* ", " _e_ ", "[f](", " #1", " | "):
        assert raw not in made, raw
    assert "https://a.b/c_d" in made


def test_a_fence_cannot_be_closed_from_inside(heal, tmp_path):
    path = tmp_path / "ticks.log"
    path.write_text("RuntimeError: CUDA error: device-side assert triggered ```` <b>\n")
    _, markdown, _ = heal("--markdown", path)
    assert "`````text\n" in markdown


def test_markdown_masks_paths_names_and_tokens(monkeypatch, heal, tmp_path):
    monkeypatch.setenv("USER", "zebrafinch")
    monkeypatch.setenv("HF_TOKEN", "not-of-a-usual-shape")
    path = tmp_path / "private.log"
    path.write_text(
        'File "/home/zebrafinch/projects/secret-plan/train.py", line 3 by jane.doe@example.org on 10.1.2.3\n'
        "OSError: [Errno 28] No space left on device: '/data/zebrafinch/out/model.bin' token hf_abcdefghijklmnop1234 "
        "not-of-a-usual-shape C:\\Users\\zebrafinch\\x.bin\n"
    )
    code, out, _ = heal("--markdown", path)
    assert code == 1
    assert "disk" in out
    for private in ("zebrafinch", "jane", "secret-plan", "10.1.2.3", "hf_abc", "not-of-a-usual", str(tmp_path)):
        assert private not in out, private
    assert "model.bin" in out
    _, plain, _ = heal("-v", path)
    assert "hf_abc" not in plain, "secrets are masked everywhere"


@pytest.mark.parametrize(
    ("told", "masked"),
    [
        ("at /home/me/x/y.py:3", "at <path>/y.py:3"),
        ("see https://huggingface.co/docs and http://intern.corp/a?b", "see https://huggingface.co/docs and <url>"),
        ("~/data/run/ is full", "<path> is full"),
        ("loss 0.1/0.2 after 3/4 epochs, a/b", "loss 0.1/0.2 after 3/4 epochs, a/b"),
        ("\\\\server\\share\\f.txt", "<path>"),
    ],
)
def test_what_names_people_and_places_is_masked_and_numbers_stay(told, masked):
    assert Discreet({}, for_others=True).text(told) == masked


def test_masking_is_not_slow_on_hostile_lines():
    mask = Discreet({}, for_others=True)
    for hostile in ("/a" * 500_000, "a@" * 500_000, "C:\\" * 300_000, "1." * 500_000, "://" * 300_000, "a:" * 400_000):
        assert len(mask.text(hostile)) <= 700


def run(*args, data=b"", tty=False):
    environ = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", "self_healing", "diagnose", *map(str, args)]
    return subprocess.run(command, input=data, capture_output=True, check=False, env=environ)


def test_standard_input_is_a_log_or_whatever_it_is(healthy, sick, crashed):
    done = run("--json", "-", data=crashed.read_bytes())
    (entry,) = document(done.stdout)
    assert (done.returncode, entry["path"], entry["format"]) == (1, "-", "log")
    assert entry["findings"][0]["class"] == "oom_gpu"
    done = run("--json", "-", data=sick.read_bytes())
    (entry,) = document(done.stdout)
    assert (done.returncode, entry["format"], entry["findings"][0]["class"]) == (1, "trainer-state", "overfitting")
    assert run("-", data=gzip.compress(healthy.read_bytes())).returncode == 0
    assert run("-", data=b"").returncode == 2
    assert b"\x1b" not in done.stdout


def test_a_terminal_gets_colours(sick, monkeypatch):
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "self_healing", "diagnose", str(sick)]
    environ = {**os.environ, "TERM": "xterm-256color"}
    environ.pop("NO_COLOR", None)
    done = subprocess.Popen(command, stdout=follower, stderr=follower, env=environ)
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert done.wait() == 1
    assert b"\x1b[" in shown
    assert b"overfitting" in shown
