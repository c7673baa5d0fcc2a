"""Checks on records: of local files, and of a trainer that is built."""

from __future__ import annotations

import json
import random
import threading
import time
import tracemalloc
from types import SimpleNamespace

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import known_checks, run_checks
from self_healing.preflight.subject import Subject, read_subject
from self_healing.preflight.tools import Tools
from self_healing.preflight.training import fetched
from self_healing.preflight.training.samples import read_rows

SAMPLES = ("missing-columns", "masked-samples", "cut-samples", "useless-samples")
LOAD = "from datasets import load_dataset\nfrom trl import *\nd = load_dataset({}, split='train')\n"


def checked(folder, script, select=SAMPLES, **options):
    (folder / "train.py").write_text(script)
    given = CheckOptions(**{"offline": True, "select": select, **options})
    return run_checks(read_subject(["train.py"], [], given, folder), Tools(options=given, environ={}, cwd=folder))


def of_trainer(trainer, folder, select=SAMPLES):
    options = CheckOptions(select=select)
    return run_checks(Subject(trainer=trainer, options=options), Tools(options=options, environ={}, cwd=folder))


def sft(folder, data, arguments="'o'", name="d.jsonl", kind="json"):
    (folder / name).write_text(data)
    load = LOAD.format(f"'{kind}', data_files='{name}'")
    return checked(folder, f"{load}SFTTrainer('m', args=SFTConfig({arguments}), train_dataset=d)\n")


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def found(report):
    return {each.check: each for each in report.findings}


def test_records_of_every_local_format_are_read(tmp_path):
    rows = [{"text": "hello"}, {"text": " "}]
    formats = {
        "d.jsonl": (lines(*rows), "json"),
        "d.json": (json.dumps(rows), "json"),
        "e.json": (json.dumps({"data": rows}, indent=1), "json"),
        "f.json": (lines(*rows), "json"),
        "d.csv": ("id,text\n1,hello\n2,\n", "csv"),
    }
    for name, (data, kind) in formats.items():
        assert "1 of 2 records" in found(sft(tmp_path, data, name=name, kind=kind))["useless-samples"].message, name


def test_records_of_a_parquet_file_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{"content": "a"}])
    parquet.write_table(table, tmp_path / "d.parquet")
    script = (
        LOAD.format("'parquet', data_files={'train': 'd.parquet'}")
        + "SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"
    )
    assert "has the columns content" in found(checked(tmp_path, script))["missing-columns"].message


def test_a_file_that_cannot_be_read_is_no_finding(tmp_path):
    for data in ("{broken", "[1, 2", "", "[" * 100_000):
        report = sft(tmp_path, data)
        assert (report.findings, {"the check itself" in each.because for each in report.not_run} - {False}) == (
            [],
            set(),
        )


def test_what_has_no_records_here_is_not_a_pass(tmp_path):
    hub = LOAD.format("'trl-lib/Capybara'") + "SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"
    report = checked(tmp_path, hub)
    assert {each.check for each in report.not_run} == set(SAMPLES)
    assert "--samples 64" in report.not_run[0].because
    assert checked(tmp_path, "from trl import *\nSFTTrainer('m', args=SFTConfig('o'))\n").not_run == []


def test_records_that_cannot_be_fetched_are_told_with_the_reason(tmp_path, monkeypatch):
    asked = []

    def streamed(*key):
        asked.append(key)
        return fetched.CannotRun("the records of org/x could not be fetched, ConnectionError: no network")

    monkeypatch.setattr(fetched, "_streamed", streamed)
    hub = LOAD.format("'org/x'") + "SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"
    report = checked(tmp_path, hub, samples=8, offline=False)
    assert {each.because for each in report.not_run} == {
        "the records of org/x could not be fetched, ConnectionError: no network"
    }
    assert asked == [("org/x", None, "train", None, 8)], "all checks share what was fetched"


def test_records_that_do_not_come_are_waited_for_once_and_not_for_long(tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(fetched, "_streamed", lambda *_: over.wait(20) and [])
    monkeypatch.setattr(fetched, "LIMIT_S", 0.3)
    two = "".join(LOAD.format(f"'org/{name}'") for name in ("hangs", "hangs-too"))
    begun = time.monotonic()
    report = checked(
        tmp_path, f"{two}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", samples=8, offline=False
    )
    took = time.monotonic() - begun
    over.set()
    assert {each.because for each in report.not_run} == {"the records of org/hangs did not come within 0.3 s"}
    assert ({each.check for each in report.not_run}, took < 5) == (set(SAMPLES), True)


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv"])
@pytest.mark.parametrize("begins", [b'{"text": "', b'[{"text": "', b"text\n"])
def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path, name, begins):
    """The file is a hole of a size that nobody would want in memory."""
    with (tmp_path / name).open("wb") as file:
        file.write(begins)
        file.truncate(150 << 20)
    tracemalloc.start()
    try:
        assert read_rows(tmp_path / name, 64) == []
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_no_more_of_a_file_is_read_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("self_healing.preflight.training.samples.LARGEST_BYTES", 1000)
    (tmp_path / "d.jsonl").write_text(lines(*[{"text": "x" * 90}] * 50))
    assert 5 < len(read_rows(tmp_path / "d.jsonl", 10_000)) < 15
    (tmp_path / "d.jsonl").write_text("\n" * 5000 + lines({"text": "late"}))
    assert read_rows(tmp_path / "d.jsonl", 64) == []


def test_a_part_of_a_parquet_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{"text": "a" * 50}] * 9), tmp_path / "d.parquet")
    assert len(read_rows(tmp_path / "d.parquet", 64)) == 9
    monkeypatch.setattr("self_healing.preflight.training.samples.LARGEST_GROUP_BYTES", 10)
    assert read_rows(tmp_path / "d.parquet", 64) == []


def test_all_checks_together_are_waited_for_no_longer_than_one(tmp_path, monkeypatch):
    over = threading.Event()
    for name in SAMPLES:
        monkeypatch.setattr(known_checks()[name], "run", lambda *_: over.wait(20) and ())
    monkeypatch.setattr("self_healing.preflight.runner.LONGEST_S", 0.4)
    begun = time.monotonic()
    report = checked(tmp_path, "")
    took = time.monotonic() - begun
    over.set()
    assert {each.because for each in report.not_run} == {"it took longer than 0.4 s"}
    assert ({each.check for each in report.not_run}, took < 1.2) == (set(SAMPLES), True)


def test_data_that_the_script_changes_is_not_judged_by_its_files_and_that_is_told(tmp_path):
    (tmp_path / "d.jsonl").write_text(lines({"question": "a", "prompt": "", "completion": "", "text": "w " * 5000}))
    load = LOAD.format("'json', data_files='d.jsonl'")
    for change in ("d = d.map(f)", "d = d.filter(f)", "p = dict(formatting_func=f)"):
        given = "**p" if change.startswith("p") else "train_dataset=d"
        report = checked(tmp_path, f"{load}{change}\nSFTTrainer('m', args=SFTConfig('o'), {given})\n")
        assert report.findings == []
        assert {each.check for each in report.not_run} == set(SAMPLES), change
        (why,) = {each.because for each in report.not_run}
        assert "train.py:4 makes other records of those of d.jsonl; SelfHealingTrainer(trainer).check()" in why


def test_records_of_several_trainings_are_not_judged_and_that_is_told(tmp_path):
    (tmp_path / "d.jsonl").write_text(lines({"prompt": "", "completion": "", "text": "w " * 5000}))
    two = "SFTConfig('a')\nSFTConfig('b')\n"
    report = checked(tmp_path, LOAD.format("'json', data_files='d.jsonl'") + two)
    assert report.findings == []
    assert {each.check for each in report.not_run} == set(SAMPLES)
    assert "train.py:4 and train.py:5 configure a training each" in report.not_run[0].because


def test_nothing_is_told_of_records_that_nobody_could_have_looked_at(tmp_path):
    """A sound script that prepares data of the Hub has no line about every check of records."""
    hub = LOAD.format("'org/x'") + "{}\nSFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"
    assert checked(tmp_path, hub.format("d = d.map(f)")).not_run == []
    assert checked(tmp_path, hub.format("SFTConfig('b')")).not_run == []
    asked = checked(tmp_path, hub.format("d = d.map(f)"), samples=8, offline=False)
    assert {each.check for each in asked.not_run} == set(SAMPLES)
    assert "those of org/x" in asked.not_run[0].because


def test_a_loop_of_python_over_something_else_does_not_keep_records_from_being_judged(tmp_path):
    (tmp_path / "d.jsonl").write_text(lines({"content": "a"}))
    load = LOAD.format("'json', data_files='d.jsonl'") + "names = list(map(str, [1]))\n"
    report = checked(tmp_path, f"{load}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n")
    assert "missing-columns" in found(report)


def test_tokens_are_counted_with_the_tokenizer_of_a_local_model(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "d.jsonl").write_text(lines({"text": "a " * 30}))
    script = LOAD.format("'json', data_files='d.jsonl'") + "m = AutoModelForCausalLM.from_pretrained('model')\n{}\n"
    cut = checked(tmp_path, script.format("SFTConfig('o', max_length=29)"))
    assert "more than 29 tokens:" in found(cut)["cut-samples"].message
    assert "cut-samples" not in found(checked(tmp_path, script.format("SFTConfig('o', max_length=30)")))


def test_records_of_which_hardly_anything_is_trained_are_found_in_files(tmp_path):
    long = "word " * 500
    pair = lines({"prompt": long, "completion": "yes"})
    few = found(sft(tmp_path, pair, "'o', max_length=4096"))["masked-samples"]
    assert (few.severity, "only 0.1% of the tokens count" in few.message) == (Severity.WARNING, True)
    assert "(about " in few.message, "without a tokenizer it is an estimate"
    talk = [{"role": "user", "content": long}, {"role": "assistant", "content": "yes"}]
    of_talk = sft(tmp_path, lines({"messages": talk}), "'o', max_length=4096, assistant_only_loss=True")
    assert "only 0.1%" in found(of_talk)["masked-samples"].message
    for arguments, rows in {
        "'o', max_length=4096, completion_only_loss=False": [{"prompt": long, "completion": "yes"}],
        "'o', max_length=4096": [{"messages": talk}],
        "'o', max_length=4097": [{"prompt": long, "completion": "yes"}, {"prompt": "a", "completion": "b " * 40}],
        "'o', max_length=4098": [{"prompt": long, "completion": "yes"}, {"text": "b " * 40}],
    }.items():
        assert "masked-samples" not in found(sft(tmp_path, lines(*rows), arguments)), arguments


def test_the_share_is_also_taken_of_records_that_were_fetched(tmp_path, monkeypatch):
    rows = [{"prompt": "word " * 500, "completion": "yes"}]
    monkeypatch.setattr(fetched, "_streamed", lambda *_: rows)
    hub = LOAD.format("'org/few'") + "SFTTrainer('m', args=SFTConfig('o', max_length=4096), train_dataset=d)\n"
    report = checked(tmp_path, hub, samples=8, offline=False)
    assert "only 0.1%" in found(report)["masked-samples"].message


# -- a trainer that is built: what is asked of one are these attributes, whatever made them ------------


class SFTConfig(SimpleNamespace):
    """Known by its name, as the real one is."""


def trainer(rows, collate=None, **arguments):
    def plain(batch):
        random.random()  # collators of masked language models draw
        return {"labels": [row["labels"] for row in batch]}

    return SimpleNamespace(
        args=SFTConfig(max_length=8, packing=False, remove_unused_columns=False, **arguments), train_dataset=rows,
        data_collator=collate or plain, model=None,
    )  # fmt: skip


def test_records_of_a_trainer_without_a_trained_token_are_found(tmp_path):
    good = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    bad = {"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}
    some = of_trainer(trainer([good, bad, good]), tmp_path)
    assert (found(some)["masked-samples"].severity, some.not_run) == (Severity.WARNING, [])
    assert "1 of 3 records" in found(some)["masked-samples"].message
    assert found(of_trainer(trainer([bad]), tmp_path))["masked-samples"].severity is Severity.ERROR
    assert of_trainer(trainer([good]), tmp_path).findings == []


def test_records_of_a_trainer_that_fill_the_length_were_cut(tmp_path):
    full = {"input_ids": list(range(8)), "labels": list(range(8))}
    assert "1 of 1 records" in found(of_trainer(trainer([full]), tmp_path))["cut-samples"].message


def test_looking_at_a_trainer_changes_no_random_numbers(tmp_path):
    random.seed(7)
    before = random.getstate()
    of_trainer(trainer([{"input_ids": [1], "labels": [1]}]), tmp_path)
    assert random.getstate() == before


def test_an_iterable_is_not_read_from(tmp_path):
    class Stream:
        def __iter__(self):
            raise AssertionError("it was read from")

    report = of_trainer(trainer(Stream()), tmp_path)
    assert report.findings == []
    assert "is an iterable" in report.not_run[0].because


def test_a_collator_that_fails_is_not_a_pass(tmp_path):
    def collate(batch):
        raise KeyError("pixel_values")

    report = of_trainer(trainer([{"input_ids": [1], "labels": [1]}], collate), tmp_path)
    assert [(each.check, "pixel_values" in each.because) for each in report.not_run] == [("masked-samples", True)]
