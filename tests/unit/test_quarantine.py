"""The list of bad records: what is on it, how it survives, and who is found to be bad."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from self_healing.adapters.data.culprits import failing_alone, odd_ones_out
from self_healing.adapters.data.data_errors import may_be_the_record
from self_healing.adapters.data.quarantine import (
    Limit,
    Quarantine,
    TooManyBadRecords,
    bad_record,
    content_hash,
    fingerprint,
    read_list,
)

DATA = fingerprint([1, 2, 3])


def bad(index, message="broken", **given):
    return bad_record(
        index=index, record={"x": index}, dataset=DATA, where="dataset", error=ValueError(message), **given
    )


def test_a_list_is_read_back_as_it_was_written(tmp_path):
    first = Quarantine(tmp_path)
    assert first.add(bad(7))
    assert first.add(bad(9, has_content=False))
    assert not first.add(bad(7)), "known already"
    again = Quarantine(tmp_path)
    assert again.records == first.records == {7: bad(7), 9: bad(9, has_content=False)}
    lines = (tmp_path / "healing/quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [7, 9]
    assert (tmp_path / "healing/quarantine.jsonl").stat().st_mode & 0o077 == 0


def test_a_changed_record_is_listed_again_and_the_newest_line_counts(tmp_path):
    quarantine = Quarantine(tmp_path)
    quarantine.add(bad(7))
    changed = bad_record(index=7, record={"x": "new"}, dataset=DATA, where="dataset", error=ValueError("x"))
    assert quarantine.add(changed)
    assert Quarantine(tmp_path).records == {7: changed}


def test_a_line_of_thousands_of_brackets_is_told_and_passed_over_like_any_other_damaged_one(tmp_path, caplog):
    Quarantine(tmp_path).add(bad(7))
    path = tmp_path / "healing/quarantine.jsonl"
    with path.open("a") as file:
        file.write('{"v": 1, "index": ' + "[" * 200_000 + "\n")
    assert Quarantine(tmp_path).records == {7: bad(7)}
    assert f"{path}:2: is not a line of this version and is passed over" in caplog.messages


def test_torn_foreign_and_newer_lines_are_passed_over_and_a_torn_end_does_not_spoil_the_next(tmp_path):
    quarantine = Quarantine(tmp_path)
    quarantine.add(bad(7))
    path = tmp_path / "healing/quarantine.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"v": 2, "index": 1}\n[1]\n{"v": 1, "index": "one"}\n' + whole[:40])
    later = Quarantine(tmp_path)
    assert set(later.records) == {7}
    later.add(bad(8))
    assert [record.index for record in read_list(path)] == [7, 8]


def test_a_line_with_an_unknown_key_counts_and_one_with_a_place_that_cannot_be_does_not(tmp_path):
    quarantine = Quarantine(tmp_path)
    quarantine.add(bad(7))
    path = tmp_path / "healing/quarantine.jsonl"
    line = json.loads(path.read_text())
    path.write_text("".join(json.dumps({**line, **more}) + "\n" for more in ({"remark": "mine"}, {"index": -3})))
    assert Quarantine(tmp_path).records == {7: bad(7)}


def test_every_rank_writes_its_own_file_and_reads_all(tmp_path):
    Quarantine(tmp_path, rank=0).add(bad(1))
    Quarantine(tmp_path, rank=3).add(bad(2))
    assert (tmp_path / "healing/quarantine.rank3.jsonl").exists()
    assert set(Quarantine(tmp_path, rank=1).records) == {1, 2}


def test_another_run_sets_the_list_aside_and_every_rank_its_own(tmp_path):
    for rank in (0, 1, 2):
        Quarantine(tmp_path, rank).add(bad(rank))
    first, second = Quarantine(tmp_path), Quarantine(tmp_path, 1)
    moved = first.set_aside(world_size=2)
    assert [path.name for path in moved] == ["earlier_1_quarantine.jsonl", "earlier_1_quarantine.rank2.jsonl"]
    assert [path.name for path in second.set_aside(world_size=2)] == ["earlier_1_quarantine.rank1.jsonl"]
    assert first.records == second.records == Quarantine(tmp_path).records == {}
    first.add(bad(7))
    assert first.set_aside()[0].name == "earlier_2_quarantine.jsonl", "nothing is overwritten"
    assert first.set_aside() == []


def test_a_symbolic_link_is_not_followed_and_the_run_goes_on(tmp_path, caplog):
    (tmp_path / "healing").mkdir()
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "healing/quarantine.jsonl").symlink_to(tmp_path / "elsewhere")
    quarantine = Quarantine(tmp_path)
    assert quarantine.add(bad(1))
    assert (tmp_path / "elsewhere").read_text() == ""
    assert "could not be written" in caplog.text


def test_secrets_and_control_characters_stay_out_of_the_list(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "very-secret-value")
    message = bad(1, "token very-secret-value \x1b[31m\nsecond line " + "x" * 999).message
    assert "very-secret-value" not in message
    assert "\x1b" not in message
    assert "\n" not in message
    assert len(message) <= 500


@pytest.mark.parametrize(
    ("count", "total", "allowed"), [(10, 100, True), (11, 100, False), (11, 11_000, True), (12, 11_000, False)]
)
def test_both_limits_must_be_exceeded(count, total, allowed):
    assert Limit().allows(count, total) is allowed


def test_too_many_says_which_why_where_and_what_to_do(tmp_path):
    quarantine = Quarantine(tmp_path)
    for index in range(11):
        quarantine.add(bad(index))
    quarantine.check(Limit(records=11), 300, DATA)
    quarantine.check(Limit(), 300, "of another dataset")
    with pytest.raises(TooManyBadRecords) as caught:
        quarantine.check(Limit(), 300, DATA)
    for part in ("11 of 300", "0, 1, 2", "ValueError in the dataset", str(quarantine.path), "delete the list"):
        assert part in str(caught.value)


RECORDS = [
    {"a": [1, 2]}, {"a": [1, 3]}, {"a": (1, 2), "b": None}, {"b": [1, 2]}, {"a": [[1], [2]]}, {"a": [[1, 2]]}, {"a": "12"},
    {"a": b"12"}, {"a": 12}, {"a": 12.0}, {"a": True}, ["12"], None,
]  # fmt: skip


def test_the_content_hash_tells_records_apart_and_is_the_same_in_another_process():
    hashes = [content_hash(record) for record in RECORDS]
    assert len(set(hashes)) == len(RECORDS)
    assert content_hash({"x": 1, "y": 2}) == content_hash({"y": 2, "x": 1})
    code = (
        f"from self_healing.adapters.data.quarantine import content_hash; print([content_hash(r) for r in {RECORDS!r}])"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == repr(hashes)


@pytest.mark.torch
def test_tensors_and_arrays_are_told_apart_by_their_bytes_and_shape():
    import numpy as np
    import torch

    values = [
        torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), torch.tensor([1, 3]), torch.tensor([[1, 2]]), torch.tensor(1),
        torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0], dtype=torch.bfloat16), np.array([1, 2]),
        np.array([1, 3]), torch.tensor([]),
    ]  # fmt: skip
    assert len({content_hash({"x": value}) for value in values}) == len(values)


def fails_on(*culprits):
    return lambda records: ValueError("no") if set(culprits) & set(records) else None


def of_one_size(records):
    return None if len({len(record) for record in records}) == 1 else ValueError("stack expects equal size")


def test_records_that_fail_alone_are_found():
    assert set(failing_alone(["a", "b", "c"], fails_on("b"))) == {1}


@pytest.mark.parametrize(
    ("records", "references", "odd"),
    [
        (["aa", "bb", "c", "dd"], [], [2]),
        (["c", "aa", "bb", "dd", "eee"], [], [0, 4]),
        (["aa", "b"], [], None),
        (["aa", "b"], ["cc", "dd"], [1]),
        (["aa", "b"], ["c", "d"], [0]),
        (["a", "bb", "ccc", "dddd"], ["eeeee", "ffffff"], None),
        (["aa", "bb"], [], None),
    ],
)
def test_the_majority_decides_who_is_odd(records, references, odd):
    assert odd_ones_out(records, of_one_size, references) == odd


@pytest.mark.parametrize(
    ("error", "is_data"),
    [
        (ValueError("expected sequence of length 16"), True),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), True),
        (KeyError("input_ids"), True),
        (FileNotFoundError(2, "No such file", "img_17.png"), True),
        (RuntimeError("stack expects each tensor to be equal size"), True),
        (MemoryError(), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (TimeoutError(), False),
        (ConnectionResetError(), False),
        (ModuleNotFoundError("No module named 'cv2'"), False),
        (NameError("name 'tokenizer' is not defined"), False),
    ],
)
def test_only_what_a_record_can_cause_is_held_against_it(error, is_data):
    assert may_be_the_record(error) is is_data
