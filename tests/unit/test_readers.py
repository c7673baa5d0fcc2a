"""Readers: what real and hostile files hold, and one sentence for what cannot be read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.core.errors import InputError
from self_healing.core.signal import Facts, Metrics
from self_healing.readers import Format, LedgerRecording, Skipped, open_recording
from self_healing.readers.names import canonical, is_step, number, step_number


def metrics(path):
    """Return (run, step, values) of every observation of metrics."""
    return [(o.run, o.signal.step, o.signal.values) for o in open_recording(path).observations() if metric_signal(o)]


def metric_signal(observation):
    return isinstance(observation.signal, Metrics)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def state(path, history, **more):
    return write(path, json.dumps({"log_history": history, "global_step": 9, **more}))


def read(path):
    recording = open_recording(path)
    return list(recording.entries() if isinstance(recording, LedgerRecording) else recording.observations())


def refusal(path):
    with pytest.raises(InputError) as caught:
        read(path)
    text = str(caught.value)
    assert os.fspath(path) in text or repr(path) in text
    assert "\n" not in text
    return text


# --- names and numbers ------------------------------------------------------------------------------------------


def test_names_become_canonical():
    said = {
        "train/loss": "loss", "eval/loss": "eval_loss", "val_loss": "eval_loss", "lr": "learning_rate",
        "train/rewards/margins": "rewards/margins", "rewards/chosen": "rewards/chosen", "eval_wer": "eval_wer",
        "completion_length": "completions/mean_length", "train/rewards/format": "rewards/format/mean",
        "rewards/format/std": "rewards/format/std", "rewards/mean": "rewards/mean", "clip_ratio": "clip_ratio/region_mean",
        "sft_loss": "nll_loss", "objective/scores": "reward", "objective/kl": "objective/kl",
        "train/": "train/", "Loss": "loss", "Training Loss": "loss", "Epoch": "epoch", "F1": "F1", " grad_norm ": "grad_norm", "train_grad_norm": "grad_norm",
    }  # fmt: skip
    assert {name: canonical(name) for name in said} == said


def test_numbers_printed_as_text_are_numbers_and_flags_are_not():
    assert number("1e-5") == 1e-5
    assert math.isnan(number("NaN"))
    assert number("-Infinity") == -math.inf
    assert number(10**400) == math.inf
    assert number(-(10**400)) == -math.inf
    assert [number(odd) for odd in (True, None, "n/a", "", [], {}, "9" * 100, "\u0663")] == [None] * 8


def test_steps_are_whole_and_in_range():
    assert [step_number(x) for x in (5, "5", 5.0, "5.0")] == [5] * 4
    assert [step_number(x) for x in (-1, 5.5, "x", None, 10**30, math.nan, math.inf, True)] == [None] * 8
    assert [name for name in ("Step", "trainer/global_step", "_step", "time/step", "steps_per_second") if is_step(name)] == [
        "Step", "trainer/global_step", "_step",
    ]  # fmt: skip


def test_the_canonical_spelling_wins_over_others(tmp_path):
    for entry in ({"loss": 1.0, "train/loss": 2.0}, {"train/loss": 2.0, "loss": 1.0}):
        assert metrics(state(tmp_path / "x.json", [{**entry, "step": 1, "global_step": 7}])) == [(0, 1, {"loss": 1.0})]


# --- trainer_state.json -----------------------------------------------------------------------------------------


def test_one_signal_per_entry_and_no_summary(tmp_path):
    path = state(
        tmp_path / "x.json",
        [
            {"step": 1, "epoch": 0.1, "loss": 2.5, "learning_rate": 1e-4, "grad_norm": 1.0, "note": "text"},
            {"step": 1, "eval_loss": 2.4, "eval_runtime": 3.0},
            {"step": 2, "train/loss": 2.3, "train/rewards/margins": 0.1},
            {"step": 2, "train_loss": 2.4, "train_runtime": 10.0, "total_flos": 1e18},
        ],
        max_steps=100,
        logging_steps="1",
    )
    first = next(open_recording(path).observations())
    assert isinstance(first.signal, Facts)
    assert first.signal.facts == {"max_steps": 100, "logging_steps": 1}
    assert metrics(path) == [
        (0, 1, {"epoch": 0.1, "loss": 2.5, "learning_rate": 1e-4, "grad_norm": 1.0}),
        (0, 1, {"eval_loss": 2.4, "eval_runtime": 3.0}),
        (0, 2, {"loss": 2.3, "rewards/margins": 0.1}),
    ]


def test_a_train_loss_that_nothing_else_explains_is_the_loss(tmp_path):
    path = state(tmp_path / "x.json", [{"step": 1, "train_loss": 3.0}, {"step": 2, "train_loss": 2.0}])
    assert [values for _, _, values in metrics(path)] == [{"loss": 3.0}, {"loss": 2.0}]
    summary = state(tmp_path / "y.json", [{"step": 1, "loss": 3.0}, {"step": 2, "train_loss": 2.0}])
    assert len(metrics(summary)) == 1


def test_text_numbers_nan_and_missing_steps(tmp_path):
    text = (
        '{"log_history": [{"loss": "2.5", "step": "10"}, {"loss": NaN}, {"eval_loss": Infinity}, {"loss": 1.0},'
        '{"NaN": 1, "loss": 1e999, "step": 20}, {"step": 30}, "odd", {"loss": ' + "9" * 5000 + ', "step": 1e300}]}'
    )
    found = metrics(write(tmp_path / "x.json", text))
    assert [step for _, step, _ in found] == [10, 11, 11, 12, 20, 21]
    assert found[0][2] == {"loss": 2.5}
    assert math.isnan(found[1][2]["loss"])
    assert found[2][2]["eval_loss"] == math.inf
    assert found[4][2] == {"NaN": 1.0, "loss": math.inf}
    assert found[5][2] == {"loss": math.inf}


def test_a_bare_list_and_an_empty_history_can_be_read(tmp_path):
    assert metrics(write(tmp_path / "a.json", '[{"step": 1, "loss": 2.0}]')) == [(0, 1, {"loss": 2.0})]
    assert metrics(state(tmp_path / "b.json", [])) == []


def test_runs_are_told_apart_where_steps_begin_again_but_not_at_a_rollback(tmp_path):
    steps = [10, 20, 30, 20, 30, 40, 10, 20]
    path = state(tmp_path / "x.json", [{"step": s, "loss": 1.0} for s in steps])
    assert [run for run, _, _ in metrics(path)] == [0, 0, 0, 0, 0, 0, 1, 1]
    with_eval_first = [{"step": 0, "eval_loss": 1.0}, *({"step": s, "loss": 1.0} for s in (10, 20, 10, 20))]
    assert [run for run, _, _ in metrics(state(tmp_path / "y.json", with_eval_first))] == [0, 0, 0, 1, 1]


def test_each_run_learns_the_facts(tmp_path):
    path = state(tmp_path / "x.json", [{"step": s, "loss": 1.0} for s in (1, 2, 1)], max_steps=5)
    kinds = [(o.run, type(o.signal).__name__) for o in open_recording(path).observations()]
    assert kinds == [(0, "Facts"), (0, "Metrics"), (0, "Metrics"), (1, "Facts"), (1, "Metrics")]


# --- tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_table_with_any_delimiter(tmp_path, delimiter):
    rows = ["Step,train/loss,eval/loss,run", "1,2.5,,a", "2,nan,2.4,a", "", "3,,,a"]
    text = "# made by a script\n\n" + "\n".join(rows).replace(",", delimiter)
    recording = open_recording(write(tmp_path / "x.txt", text))
    assert recording.format is Format.CSV
    found = metrics(recording.path)
    assert [step for _, step, _ in found] == [1, 2]
    assert found[0][2] == {"loss": 2.5}
    assert math.isnan(found[1][2]["loss"])
    assert found[1][2]["eval_loss"] == 2.4


def test_a_table_without_steps_counts_rows_and_a_second_header_starts_again(tmp_path):
    path = write(tmp_path / "x.csv", "loss,lr\r\n3,0.1\r\n2,0.1\r\nloss,lr\r\n3,0.1\r\n")
    assert [(run, step) for run, step, _ in metrics(path)] == [(0, 0), (0, 1), (1, 0)]


def test_an_export_of_one_wandb_run_loses_its_prefix(tmp_path):
    text = '"Step","brave-fox-1 - train/loss","brave-fox-1 - train/loss__MIN","brave-fox-1 - train/loss__MAX"\n5,2.0,1.0,3.0\n'
    assert metrics(write(tmp_path / "x.csv", text)) == [(0, 5, {"loss": 2.0})]


def test_time_comes_from_the_table(tmp_path):
    path = write(tmp_path / "x.csv", "step,loss,_timestamp\n1,2.0,100.5\n2,2.0,inf\n")
    assert [o.signal.time_s for o in open_recording(path).observations()] == [100.5, 0.0]


def test_json_lines_tolerate_and_count_other_lines(tmp_path):
    lines = ['{"_step": 1, "train/loss": 2.5}', "not json", "[1]", '{"a": ' + "[" * 100_000, '{"_step": 2, "loss": "2.0"}',
             '{"_step": 3, "lo']  # fmt: skip
    recording = open_recording(write(tmp_path / "metrics.log", "\n".join([lines[0], lines[4], *lines])))
    skipped = Skipped()
    assert recording.format is Format.JSON_LINES
    assert [o.signal.values for o in recording.observations(skipped)][-1] == {"loss": 2.0}
    assert skipped.lines == 4


def test_marks_of_other_systems_are_understood(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("step,loss\r\n1,2.0\r\n".encode("utf-16"))
    assert metrics(path) == [(0, 1, {"loss": 2.0})]
    path.write_bytes(b"\xef\xbb\xbfstep,loss\n1,2.0\n2,1.9\0\0\0\n\xff\xfe,\n")
    assert [step for _, step, _ in metrics(path)] == [1, 2]


def test_an_endless_quote_is_refused_and_not_swallowed(tmp_path):
    path = write(tmp_path / "x.csv", 'step,loss\n1,2.0\n2,"' + "3.0\n" * 100_000)
    assert "CSV" in refusal(path)


# --- recognition ------------------------------------------------------------------------------------------------


def test_the_content_decides_not_the_name(tmp_path):
    assert open_recording(state(tmp_path / "a.csv", [])).format is Format.TRAINER_STATE
    assert open_recording(write(tmp_path / "b.json", "step,loss\n")).format is Format.CSV
    line = '{"v":1,"seq":1,"attempt":1,"time":0.0,"step":0,"rank":0,"kind":"note","name":"x","body":{}}\n'
    assert open_recording(write(tmp_path / "c.json", line)).format is Format.LEDGER
    assert (
        open_recording(write(tmp_path / "d.txt", '{"step": 1, "loss": 2}\n{"step": 2}\n')).format is Format.JSON_LINES
    )


def test_a_folder_stands_for_its_newest_recording(tmp_path):
    for number_ in (9, 100, 20):
        folder = tmp_path / f"checkpoint-{number_}"
        folder.mkdir()
        state(folder / "trainer_state.json", [])
    assert open_recording(tmp_path).path.parent.name == "checkpoint-100"
    state(tmp_path / "trainer_state.json", [])
    assert open_recording(tmp_path).path == tmp_path / "trainer_state.json"
    (tmp_path / "healing").mkdir()
    write(tmp_path / "healing" / "ledger.jsonl", '{"v":1,"seq":1,"attempt":1,')
    assert isinstance(open_recording(tmp_path), LedgerRecording)
    assert open_recording(tmp_path / "healing").path.name == "ledger.jsonl"


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path):
    path = tmp_path / "file"
    said = {
        b"": "is empty",
        b" \n\0\0\n": "nothing but blanks",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3856\n": "git lfs pull",
        b"../.git/annex/objects/ab/cd": "git annex get",
        b"PK\x03\x04rest": "a zip archive",
        b"\x80\x04\x95pickle": "a pickle",
        bytes(range(256)) * 20: "a binary file",
        b'{"log_history": [{"loss": 1.0}, {"lo': "ends in the middle",
        b'{"log_history": [': "ends in the middle",
        b'{"log_history": [1, 2]}': "not a list of objects",
        b'{"log_history": {"a": 1}}': "not a list of objects",
        b'{\n"best_metric": 1,\n"epoch": 2\n}': "has no log_history (found: best_metric, epoch)",
        b'{"a": 1}': "has no log_history",
        b"[1, 2]": "no trainer_state.json",
        b'{"log_history": oops}': "is not valid JSON",
        b"1,2,3\n4,5,6\n": "no format",
        b"just some words\n": "no format",
        b"name,age\nx,3\n": "no format",
        b'{"v":99,"seq":1,"attempt":1,"time":0.0,"step":0,"rank":0,"kind":"note","name":"x","body":{}}\n': "schema 99",
    }  # fmt: skip
    for content, expected in said.items():
        path.write_bytes(content)
        assert expected in refusal(path), content
    assert "no such file" in refusal(tmp_path / "missing")
    assert "no such file" in refusal(path / "below-a-file")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "is a folder without" in refusal(folder)
    assert "not a file name" in refusal("a\0b")


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path):
    path = state(tmp_path / "x.json", [])
    path.chmod(0)
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("begin", "unit"),
    [(b"", b"["), (b"", b'{"a":'), (b'{"log_history":', b"["), (b'{"log_history":[{"loss":', b'{"a":')],
)
def test_a_hundred_megabytes_of_nesting_are_refused(tmp_path, begin, unit):
    path = tmp_path / "deep.json"
    with path.open("wb") as file:
        file.write(begin)
        for _ in range(100):
            file.write(unit * (2**20 // len(unit)))
    assert "nested too deeply" in refusal(path)


def test_a_state_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("self_healing.readers.trainer_state.LARGEST_BYTES", 10)
    assert "more than the 10" in refusal(state(tmp_path / "x.json", []))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_million_lines_are_read_in_constant_memory(tmp_path):
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("step,loss,grad_norm\n")
        for start in range(0, 1_000_000, 10_000):
            file.write("".join(f"{step},2.5,1.0\n" for step in range(start, start + 10_000)))
    code = textwrap.dedent("""
        import re, sys
        from self_healing.readers import open_recording
        def peak(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
        before = peak()
        count = sum(1 for _ in open_recording(sys.argv[1]).observations())
        print(count, peak() - before)
    """)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    count, grown_kib = map(int, done.stdout.split())
    assert count == 1_000_000
    assert grown_kib < 10_000, "the file has 16 MB, its rows as objects some 200"


@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda t: ("step,loss\n" + t).encode()),
                         st.text(max_size=200).map(lambda t: ('{"log_history": [' + t).encode("utf-8", "replace"))))  # fmt: skip
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path, content):
    path = tmp_path / "any"
    path.write_bytes(content)
    with contextlib.suppress(InputError):  # anything else fails the test
        read(path)
