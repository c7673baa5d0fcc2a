"""What is written reads back exactly, and damage costs only the damaged lines."""

from __future__ import annotations

import enum
import fractions
import json
import math
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.core.errors import LedgerError
from self_healing.core.ledger import SCHEMA, Book, Entry, Ledger, LedgerReading, iter_ledger, read_ledger

KEYS = ["v", "seq", "attempt", "time", "step", "rank", "kind", "name", "body"]


def add(book: Book, kind: str = "signal", step: int = 0, **body: object) -> Entry:
    return book.append(kind, "metrics", step=step, time_s=step / 8, body=body)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path, environ={})
    yield opened
    opened.close()


def test_a_line_has_its_keys_in_order_and_reads_back(ledger: Ledger) -> None:
    ledger.append("config", "resolved", step=0, time_s=1.5, body={"mode": "heal"})
    ledger.append("signal", "metrics", step=7, time_s=2.5, rank=3, body={"values": {"loss": 0.1}})
    assert ledger.flush()
    assert [list(json.loads(line)) for line in ledger.path.read_text().splitlines()] == [KEYS, KEYS]
    assert read_ledger(ledger.path).entries == [
        Entry(SCHEMA, 1, 1, 1.5, 0, 0, "config", "resolved", {"mode": "heal"}),
        Entry(SCHEMA, 2, 1, 2.5, 7, 3, "signal", "metrics", {"values": {"loss": 0.1}}),
    ]


# Every awkward character, but no letters that spell a secret: those would be masked.
TEXT = st.text(alphabet='az09 \n\0"\\$\x7f\x85\u00e9\u2028\ud800\ufeff\U0001f600', max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "$float", "$$float", "float", "$x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(body=st.dictionaries(TEXT, PLAIN, max_size=4), moment=st.floats())
@settings(max_examples=50, deadline=None)
def test_every_body_reads_back_exactly_and_the_file_is_strict_json(body: Mapping[str, object], moment: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        book = Ledger(folder, environ={})
        book.append("signal", "metrics", step=1, time_s=moment, body=body)
        book.close()
        json.loads(book.path.read_text("ascii"), parse_constant=pytest.fail)
        (entry,) = read_ledger(book.path).entries
    assert repr(entry.body) == repr(dict(body))  # repr tells nan from nothing, -0.0 from 0.0, 1 from True
    assert repr(entry.time) == repr(moment)


class Colour(enum.IntEnum):
    RED = 3


class Word(enum.StrEnum):
    YES = "yes"


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("CUDA error: device-side assert")


def test_odd_values_are_written_as_what_they_mean(ledger: Ledger) -> None:
    add(ledger, pair=(1, 2), colour=Colour.RED, word=Word.YES, path=Path("/x"), part=fractions.Fraction(1, 4), some={1})
    assert ledger.flush()
    assert read_ledger(ledger.path).entries[0].body == {
        "pair": [1, 2], "colour": 3, "word": "yes", "path": "/x", "part": 0.25, "some": [1]
    }  # fmt: skip


def test_a_body_that_cannot_be_written_costs_only_itself(ledger: Ledger) -> None:
    circle: list[object] = []
    circle.append(circle)
    for body in ({"x": Hostile()}, {"x": circle}, {"x": "a" * 5_000_000}, {"x": 10**5000}):
        add(ledger, **body)
    add(ledger, fine=1)
    assert ledger.flush()
    reading = read_ledger(ledger.path)
    assert reading.torn == 0
    assert [list(entry.body) for entry in reading.entries] == [["$unwritable"]] * 4 + [["fine"]]
    assert "device-side assert" in str(reading.entries[0].body)


# --- reopening and reading damaged files ---


def test_an_empty_file_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    assert read_ledger(tmp_path / "x.jsonl") == LedgerReading()


@given(bodies=st.lists(st.dictionaries(TEXT, PLAIN, max_size=2), min_size=2, max_size=3))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_ledger_cut_after_any_byte_can_be_read_and_continued(bodies: list[Mapping[str, object]]) -> None:
    # In memory, because a thousand ledgers are synced to it.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        book = Ledger(folder, environ={})
        for step, body in enumerate(bodies):
            book.append("outcome" if step % 2 else "signal", "x", step=step, time_s=math.inf, body=body)
        book.close()
        whole = book.path.read_bytes()
        entries = read_ledger(book.path).entries
        assert len(entries) == len(bodies)
        for cut in range(len(whole) + 1):
            book.path.write_bytes(whole[:cut])
            complete = whole[:cut].count(b"\n")
            # A last line that only lacks its end is an entry too.
            complete += not whole[:cut].endswith(b"\n") and whole[cut : cut + 1] == b"\n"
            is_torn = not whole[:cut].endswith(b"\n") and cut > 0 and whole[cut : cut + 1] != b"\n"
            reading = read_ledger(book.path)
            assert repr(reading.entries) == repr(entries[:complete])
            assert reading.torn == is_torn
            again = Ledger(book.path, environ={})
            again.append("verdict", "after-the-cut", step=9, time_s=0, body={})
            again.close()
            reading = read_ledger(book.path)
            assert repr(reading.entries[:-1]) == repr(entries[:complete])
            assert reading.entries[-1].name == "after-the-cut"
            assert (reading.torn, reading.out_of_order) == (is_torn, 0)


def test_damage_anywhere_costs_only_the_damaged_lines(ledger: Ledger) -> None:
    for step in range(6):
        add(ledger, step=step)
    ledger.close()
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    lines[1] = b"\0" * 300 + b"\n"
    lines[2] = lines[2].replace(b"metrics", b"met\xff\xfeics")
    lines[3] = b"[" * 100_000 + b"\n" + lines[0].replace(b"{}", b'{"x":NaN}') + b'{"v":1,"seq":4}\n' + b'"text"\n\n\r\n'
    lines[4] = lines[4] + b'{"v":1,' + b"x" * 9_000_000 + b"\n"
    ledger.path.write_bytes(b"".join([*lines, lines[0]]))
    reading = read_ledger(ledger.path)
    assert [entry.seq for entry in reading.entries] == [1, 5, 6, 1]
    assert reading.torn == 7
    assert reading.out_of_order == 1


def test_a_file_that_begins_with_zeros_is_still_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\0" * 5000)
    book = Ledger(path, environ={})
    add(book, "incident")
    book.close()
    reading = read_ledger(path)
    assert (len(reading.entries), reading.torn) == (1, 1)


def test_reading_takes_constant_memory(tmp_path: Path) -> None:
    line = {**dict.fromkeys(KEYS, 1), "kind": "note", "name": "x", "body": {"text": "a" * 1000}}
    path = tmp_path / "x.jsonl"
    path.write_text((json.dumps(line, separators=(",", ":")) + "\n") * 4000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in iter_ledger(path)) == 4000
        assert tracemalloc.get_traced_memory()[1] < 500_000
        path.write_bytes(path.read_bytes()[:2000] + b"\n" + b"x" * 20_000_000)
        tracemalloc.reset_peak()
        assert sum(1 for _ in iter_ledger(path)) == 1
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("use", [lambda path: Ledger(path, environ={}), read_ledger])
def test_a_newer_schema_is_refused_by_name(tmp_path: Path, use: Callable[[Path], object]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"v":1,"seq":1,"attempt":1,"x":\n{"v":7,"seq":1,"attempt":1,"new":"shape"}\n')
    with pytest.raises(LedgerError, match=r"x\.jsonl: written with ledger schema 7, this version reads 0 and 1"):
        use(path)


@pytest.mark.parametrize("use", [lambda path: Ledger(path, environ={}), read_ledger])
@pytest.mark.parametrize(
    "content", [b'{"loss": 1}\n', b"step 1 loss 2\n", b'{\n  "loss": 1\n}\n', b"PK\x03\x04\xff\xfe", b"\x89\n\n"]
)
def test_another_kind_of_file_is_refused_and_left_alone(
    tmp_path: Path, use: Callable[[Path], object], content: bytes
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"is not a ledger.*move the file away.*another output_dir"):
        use(path)
    assert path.read_bytes() == content


def test_links_pipes_and_missing_rights_are_named(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(LedgerError, match="symbolic link"):
        Ledger(tmp_path / "link.jsonl", environ={})
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger(tmp_path / "pipe.jsonl", environ={})
    with pytest.raises(LedgerError, match="cannot be opened: Not a directory"):
        Ledger(tmp_path / "victim" / "x", environ={})
    with pytest.raises(LedgerError, match="cannot be read: No such file"):
        read_ledger(tmp_path / "absent.jsonl")
