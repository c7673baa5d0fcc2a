"""What a diagnosis reads: every format as its own program writes it, and whatever else lies about on disks."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import sqlite3
import struct

import pytest

from self_healing.diagnosis import diagnose_input
from self_healing.readers.formats import tensorboard, wandb_file
from self_healing.readers.protobuf import Damaged, fields
from self_healing.readers.source import Reading, Seen, open_source

TORN = [1.0, 0.9, 0.8, 0.7, 0.75, 0.85, 0.95, 1.1]
"""Evaluations that turn."""


def losses(count=80):
    return [0.3 + 2.0 * math.exp(-i / 12) + 0.01 * math.sin(i * i) for i in range(count)]


def rows(count=80):
    """Return a run that overfits: one row a step, an evaluation every tenth."""
    return [
        {"step": i, "loss": loss} | ({"eval_loss": TORN[i // 10]} if i % 10 == 9 else {})
        for i, loss in enumerate(losses(count))
    ]


def main_class(path):
    report = diagnose_input(path)
    return "healthy" if report.healthy else report.findings[0].fine


def seen(path):
    return [item for item in open_source(path).items(Reading()) if isinstance(item, Seen)]


# -- tables, states, ledgers ---------------------------------------------------------------------------------------


def test_json_lines_and_csv_are_read_as_metrics(tmp_path):
    lines = tmp_path / "metrics.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    table = tmp_path / "metrics.csv"
    table.write_text(
        "step,loss,eval_loss\n" + "".join(f"{r['step']},{r['loss']},{r.get('eval_loss', '')}\n" for r in rows())
    )
    for path, kind in ((lines, "json-lines"), (table, "csv-table")):
        report = diagnose_input(path)
        assert (report.format, report.findings[0].fine, report.findings[0].step) == (kind, "overfitting", 39)


def test_the_headings_of_notebooks_and_other_spellings_are_known(tmp_path):
    table = tmp_path / "printed.csv"
    table.write_text(
        "Step\tTraining Loss\tValidation Loss\n"
        + "".join(f"{r['step']}\t{r['loss']}\t{r.get('eval_loss', '')}\n" for r in rows())
    )
    assert main_class(table) == "overfitting"
    table.write_text("Epoch,Loss\n" + "".join(f"{r['step']},{r['loss']}\n" for r in rows()))
    assert {name for item in seen(table) for name in item.signal.values} == {"epoch", "loss"}
    lines = tmp_path / "trainer_log.jsonl"
    lines.write_text("".join(json.dumps({"current_steps": 5 * r["step"], "loss": r["loss"]}) + "\n" for r in rows()))
    assert [item.signal.step for item in seen(lines)][:3] == [0, 5, 10]


def test_the_number_of_observations_is_that_of_losses_and_rewards(tmp_path):
    table = tmp_path / "results.csv"
    table.write_text("epoch,train/box_loss\n" + "".join(f"{i},{1.0 / (i + 1)}\n" for i in range(100)))
    finding = diagnose_input(table).findings[0]
    assert (finding.fine, finding.because.split()[0]) == ("insufficient_data", "no")


def test_text_between_json_lines_is_read_too(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows(40)) + "torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    assert main_class(path) == "oom_gpu"


def test_json_lines_without_metrics_are_a_log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"level": "error", "message": "torch.OutOfMemoryError: CUDA out of memory."}) + "\n" * 2)
    report = diagnose_input(path)
    assert (report.format, report.findings[0].fine) == ("log", "oom_gpu")


@pytest.mark.parametrize("name", ["trainer_state.json", "init.py", "x"])
def test_a_state_is_known_by_its_content(tmp_path, name):
    path = tmp_path / name
    path.write_text(json.dumps({"log_history": rows()}, indent=2))
    assert (diagnose_input(path).format, main_class(path)) == ("trainer-state", "overfitting")


def test_final_results_alone_are_too_little(tmp_path):
    path = tmp_path / "all_results.json"
    path.write_text(json.dumps({"epoch": 3.0, "eval_loss": 1.2, "train_loss": 0.9, "train_runtime": 3.0}))
    assert main_class(path) == "insufficient_data"
    assert diagnose_input(path).is_usable


def test_numbers_as_text_zeros_and_odd_entries_are_no_trouble(tmp_path):
    path = tmp_path / "trainer_state.json"
    history = [{"loss": f"{loss:.4f}", "step": str(10 * i)} for i, loss in enumerate(losses())]
    history += [None, 3, {"step": [1]}, {"loss": None}, {"loss": "n/a", "step": -4}, {"loss": {"a": 1}}]
    path.write_bytes(b"\0" * 100 + json.dumps({"log_history": history}).encode())
    assert main_class(path) == "healthy"


def test_packed_files_are_read_as_what_is_inside(tmp_path):
    path = tmp_path / "trainer_state.json.gz"
    packed = gzip.compress(json.dumps({"log_history": rows()}).encode())
    path.write_bytes(packed)
    report = diagnose_input(path)
    assert (report.format, report.findings[0].fine) == ("trainer-state", "overfitting")
    path.write_bytes(packed[: len(packed) // 2])
    report = diagnose_input(path)
    assert report.findings[0].fine == "truncated"
    assert str(path) in report.findings[0].because, "the file is named, not its copy"
    log = tmp_path / "run.log.gz"
    log.write_bytes(gzip.compress(b"epoch 1\ntorch.OutOfMemoryError: CUDA out of memory.\n"))
    assert (diagnose_input(log).format, main_class(log)) == ("log", "oom_gpu")


# -- trackers, as they write ---------------------------------------------------------------------------------------


def test_an_event_file_of_a_real_writer(tmp_path):
    writer_class = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    with writer_class(str(tmp_path)) as writer:
        for row in rows():
            writer.add_scalar("train/loss", row["loss"], row["step"])
            if "eval_loss" in row:
                writer.add_scalar("eval/loss", row["eval_loss"], row["step"], new_style=True)
        writer.add_text("note", "not a number")
        writer.add_histogram("weights", pytest.importorskip("torch").ones(3), 1)
    (path,) = tmp_path.iterdir()
    observed = seen(path)
    assert [item.signal.step for item in observed] == list(range(80))
    assert observed[9].signal.values == pytest.approx({"loss": losses()[9], "eval_loss": 1.0})
    assert (diagnose_input(path).format, main_class(path), main_class(tmp_path)) == (
        "tensorboard",
        "overfitting",
        "overfitting",
    )

    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    report = diagnose_input(path)
    assert report.findings[0].fine == "overfitting"
    assert "ends in the middle" in report.notes[0]
    path.write_bytes(whole[:2000] + bytes(200) + whole[2200:])
    report = diagnose_input(path)
    assert report.is_usable
    assert any("is damaged from byte" in note for note in report.notes)
    assert 5 < len(seen(path)) < 40, "what came before the damage counts"


def test_checksums_of_lengths_are_those_of_the_format():
    assert tensorboard._masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


def test_a_wandb_run_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "wrap_raw")
    run = wandb.init(mode="offline", project="p", dir=str(tmp_path), settings=wandb.Settings(x_disable_stats=True))
    for row in rows():
        run.log({"train/loss": row["loss"], "train/global_step": row["step"], "nested": {"deep": 1.0}}
                | ({"eval/loss": row["eval_loss"]} if "eval_loss" in row else {}))  # fmt: skip
    run.finish()
    (path,) = (p for p in tmp_path.rglob("*.wandb") if not p.parent.is_symlink() and "latest" not in str(p))
    observed = seen(path)
    assert len(observed) == 80
    assert observed[9].signal.step == 9
    assert observed[9].signal.values["eval_loss"] == 1.0
    assert (diagnose_input(path).format, main_class(path), main_class(tmp_path)) == (
        "wandb-file",
        "overfitting",
        "overfitting",
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert diagnose_input(path).is_usable
    assert 30 < len(seen(path)) < 50


def leveldb(*records):
    """Write records as wandb does, cut into fragments where a block ends."""
    made = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        left, first = record, True
        while first or left:
            room = wandb_file.BLOCK - len(made) % wandb_file.BLOCK
            if room < 7:
                made += bytes(room)
                continue
            piece, left = left[: room - 7], left[room - 7 :]
            kind = 1 if first and not left else 2 if first else 3 if left else 4
            made += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return bytes(made)


def field(number, data):
    size, length = len(data), bytearray()
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    key = number << 3 | 2
    head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return head + bytes([*length, size]) + data


def test_records_over_several_blocks_are_put_together(tmp_path):
    path = tmp_path / "run-x.wandb"
    printed = field(13, field(3, ("padding " * 20_000).encode() + b"\ntorch.OutOfMemoryError: CUDA out of memory.\n"))
    path.write_bytes(leveldb(printed, printed))
    report = diagnose_input(path)
    assert report.findings[0].fine == "oom_gpu"


def test_a_trackio_database(tmp_path, monkeypatch):
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path)
    assert trackio is not None
    for name in ("first", "second"):
        made = [{k: v for k, v in row.items() if k != "step"} for row in rows()]
        if name == "first":
            made = [{"loss": math.nan} for _ in made]
        SQLiteStorage.bulk_log(project="p", run=name, metrics_list=made, steps=list(range(80)))
    (path,) = tmp_path.glob("*.db")
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert [item.run for item in seen(path)] == [0] * 80 + [1] * 80
    report = diagnose_input(tmp_path)
    assert (report.format, report.findings[0].fine) == ("run-folder", "overfitting"), "the last run speaks"
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before, "nothing is written beside it"


def test_a_database_with_a_view_without_an_end_is_given_up(tmp_path):
    path = tmp_path / "p.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(rowid) AS (SELECT 1 UNION ALL SELECT rowid + 1 FROM n) "
            "SELECT rowid, 'r' AS run_name, rowid AS step, '{}' AS metrics FROM n"
        )
    database.close()
    report = diagnose_input(path)
    assert not report.is_usable
    assert "interrupted" in report.findings[0].because


def test_other_databases_are_refused(tmp_path):
    path = tmp_path / "other.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t (x)")
    database.commit()
    database.close()
    assert "without trackio" in diagnose_input(path).findings[0].because


# -- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_stands_for_the_newest_state_and_its_logs(tmp_path):
    for number, content in ((500, rows(10)), (1000, rows())):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": content}))
        (folder / "optimizer.pt").write_bytes(pickle.dumps({"a": 1}))
    report = diagnose_input(tmp_path)
    assert report.findings[0].fine == "overfitting"
    assert "in checkpoint-1000/trainer_state.json" in report.findings[0].evidence
    (tmp_path / "slurm-17.out").write_text("step 1\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    report = diagnose_input(tmp_path)
    assert [finding.fine for finding in report.findings[:2]] == ["oom_gpu", "overfitting"]
    assert "in slurm-17.out" in report.findings[0].evidence
    assert report.findings[0].because.startswith("slurm-17.out: ")


def test_a_folder_of_thousands_of_files_and_nothing_to_read(tmp_path):
    for number in range(1500):
        (tmp_path / f"sample-{number}.bin").write_bytes(b"\0")
    report = diagnose_input(tmp_path)
    assert not report.is_usable
    assert "without anything to diagnose" in report.findings[0].because


def test_a_folder_whose_files_cannot_be_used_cannot_be_used(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"loss": 1.0')
    report = diagnose_input(tmp_path)
    assert (report.is_usable, report.findings[0].fine) == (False, "truncated")


def test_a_folder_that_contains_itself_ends(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "run.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert main_class(tmp_path) == "oom_gpu"


# -- what is no recording -----------------------------------------------------------------------------------------


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize(
    ("content", "fine"),
    [
        (b"", "insufficient_data"),
        (b"\0" * 10_000, "insufficient_data"),
        (os.urandom(20_000), "insufficient_data"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3856\n", "lfs_pointer"),
        (b'{"log_history": [{"loss": 1.0, "step": 1}, {"loss": 0.9', "truncated"),
        (b'{"log_history": "none"}', "not_hf_format"),
        (b'{"tasks": 3, "done": true}', "not_hf_format"),
        (b'{"a":' * 100_000, "insufficient_data"),
        (b":W&B\xe1\xbe\x00" + b"\xff" * 70_000, "insufficient_data"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "insufficient_data"),
        (b"\x1f\x8b" + b"\xff" * 5000, "insufficient_data"),
        (struct.pack("<QI", 2**60, 1) + b"brain.Event:2" + b"\xff" * 100, "insufficient_data"),
    ],
    ids=["empty", "zeros", "noise", "lfs", "cut", "no-list", "other-json", "deep", "wandb", "sqlite", "gzip", "events"],
)
def test_what_cannot_be_used_is_said_in_one_sentence(tmp_path, content, fine):
    path = tmp_path / "input"
    path.write_bytes(content)
    report = diagnose_input(path)
    assert (report.is_usable, report.healthy) == (False, False)
    (finding,) = report.findings
    assert finding.fine == fine
    assert "\n" not in finding.because
    assert str(path) in finding.because


def test_nothing_is_ever_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    for protocol in (0, 2, 5):
        path = tmp_path / f"training_args-{protocol}.log"
        path.write_bytes(pickle.dumps(Bomb(), protocol))
        diagnose_input(path)
    diagnose_input(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_pipes_devices_and_odd_names_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "a\0b", "", tmp_path / "absent"):
        assert not diagnose_input(path).is_usable


@pytest.mark.parametrize("data", [b"\x80" * 30, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\x0d\x01"])
def test_bytes_that_are_no_message_are_damage(data):
    with pytest.raises(Damaged):
        list(fields(data))


def test_every_beginning_of_a_recording_is_survived(tmp_path):
    source = json.dumps({"log_history": rows(20)}).encode()
    wandb = leveldb(field(2, field(1, field(1, b"loss") + bytes([0x82, 0x01, 3]) + b"0.5")))
    path = tmp_path / "input"
    for whole in (source, gzip.compress(source), wandb, b"step,loss\n1,2\n2,1\n"):
        for end in range(0, len(whole), max(1, len(whole) // 40)):
            path.write_bytes(whole[:end])
            assert diagnose_input(path).findings or end > len(whole) // 2
