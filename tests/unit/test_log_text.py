"""Reading logs as lines: whatever bytes they hold, the lines are clean, numbered, and none is held whole that is too long."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import textwrap
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from self_healing.core.errors import InputError
from self_healing.readers.log_text import (
    HEAD_BYTES,
    LONGEST_BYTES,
    TAIL_BYTES,
    LogFacts,
    open_log,
    read_blocks,
    read_lines,
)
from self_healing.readers.text_file import NotFetched

BAR = "\r {n}%|\u2588\u2588  | {n}/100 [00:01<00:02, 1.62it/s]"


class Dribble(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data, step):
        super().__init__(data)
        self.step = step

    def read1(self, size=-1):
        return super().read1(self.step)


class Endless(io.BufferedIOBase):
    """A stream of one pattern, many megabytes long, that is never held anywhere."""

    def __init__(self, piece, times, head=b"", tail=b""):
        self.pieces = iter((head, *(piece for _ in range(times)), tail))

    def read1(self, size=-1):
        return next((piece for piece in self.pieces if piece), b"")


def lines(data, facts=None):
    return list(read_lines(io.BytesIO(data), facts))


def texts(data):
    return [line.text for line in lines(data)]


# --- numbers and ends of lines ----------------------------------------------------------------------------------


def test_lines_are_numbered_by_line_feeds():
    assert lines(b"a\n\nb\r\nc") == [(1, "a"), (2, ""), (3, "b"), (4, "c")]


def test_a_final_line_feed_ends_the_last_line_and_begins_none():
    facts = LogFacts()
    assert lines(b"a\nb\n", facts) == [(1, "a"), (2, "b")]
    assert (facts.lines, facts.bytes) == (2, 4)


def test_only_line_feeds_end_lines():
    assert texts("a\x0bb\x0cc\u2028d\x85e".encode()) == ["abcde"]


def test_a_block_holds_its_lines_joined_with_a_number_for_each():
    (block,) = read_blocks(io.BytesIO(b"a\nb\nc\n"))
    assert list(block.numbers) == [1, 2, 3]
    assert block.text == "a\nb\nc"


# --- what is removed --------------------------------------------------------------------------------------------


def test_zeros_escapes_and_control_characters_are_gone():
    data = (
        b"\x1b[32mloss\x1b[0m \0\0is\x07 \x1b]0;title\x07high\x1b[2K\x1b(B \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x7f"
    )
    assert texts(data) == ["loss is high link"]


def test_what_would_steer_a_terminal_beyond_ascii_is_gone():
    assert texts("a\x9b31mb\u202ec\u200bd\ufeffe".encode()) == ["a31mbcde"]


def test_an_escape_that_does_not_end_takes_no_text_with_it():
    assert texts(b"\x1b]0;no end of the title\nError: here\n\x1b") == ["0;no end of the title", "Error: here", ""]


def test_bytes_that_are_no_utf8_are_replaced():
    assert texts(b"loss \xff\xfe 1.5 \xe2\x96") == ["loss \ufffd\ufffd 1.5 \ufffd"]


def test_characters_stay_whole_however_the_bytes_arrive():
    text = "Verlust f\u00e4llt \u2588\u2588 \U0001f600\nzweite Zeile"
    assert [line.text for line in read_lines(Dribble(text.encode(), 1))] == text.split("\n")


# --- progress bars ----------------------------------------------------------------------------------------------


def test_of_a_redrawn_bar_the_last_state_stays():
    data = "".join(BAR.format(n=n) for n in range(50)).encode() + b"\nnext"
    assert lines(data) == [(1, BAR.format(n=49).strip("\r")), (2, "next")]


def test_every_state_with_metrics_stays_with_the_bar_before_it():
    bars = [BAR.format(n=n) for n in range(6)]
    data = "".join([*bars[:3], "\r        \r{'loss': 1.5}", *bars[3:]]).encode()
    assert [text.strip() for text in texts(data)] == [bars[2].strip(), "{'loss': 1.5}", bars[5].strip()]


def test_a_message_that_a_bar_overwrote_stays():
    data = (BAR.format(n=1) + "\rRuntimeError: it broke" + BAR.format(n=2) + "\n").encode()
    assert "RuntimeError: it broke" in texts(data)


def test_bars_that_walk_back_over_themselves_are_redrawn_too():
    assert texts(b"1/3 ETA: 2s\b\b\b\b\b\b\b\b\b\b2/3 ETA: 1s\b\b\b\b\b\b\b\b\b\b3/3 done\n") == ["3/3 done"]


def test_a_bar_that_never_ends_its_line_needs_no_memory():
    piece = "".join(BAR.format(n=n) for n in range(50)).encode()
    facts = LogFacts()
    found = list(read_lines(Endless(piece, 2000, tail=b"\rloss: 1.5\rCUDA error"), facts))
    assert [line.text.strip() for line in found][-2:] == ["loss: 1.5", "CUDA error"]
    assert {line.number for line in found} == {1}
    assert facts.lines == 1


# --- long lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1000, 2**18])
def test_of_a_very_long_line_both_ends_stay_and_the_cut_is_marked(step):
    data = b"first\n" + b"HEAD" + b"x" * 10**6 + b"TAIL\nlast"
    facts = LogFacts()
    found = list(read_lines(Dribble(data, step), facts))
    assert [line.number for line in found] == [1, 2, 3]
    assert (found[0].text, found[2].text, facts.cut) == ("first", "last", 1)
    cut = found[1].text
    assert cut.startswith("HEAD")
    assert cut.endswith("TAIL")
    assert f" [... {10**6 + 8 - LONGEST_BYTES} bytes cut ...] " in cut
    assert len(cut) < LONGEST_BYTES + 64


def test_a_line_as_long_as_may_be_stays_whole():
    line = b"y" * LONGEST_BYTES
    facts = LogFacts()
    assert texts(line + b"\n" + line) == [line.decode()] * 2
    assert facts.cut == 0
    assert HEAD_BYTES + TAIL_BYTES == LONGEST_BYTES


@pytest.mark.parametrize(
    "before", [0, 1, LONGEST_BYTES // 2, LONGEST_BYTES + 63, LONGEST_BYTES + 64, LONGEST_BYTES + 65]
)
def test_a_long_line_that_comes_whole_among_others_is_cut_too(before):
    others = b"x" * 79 + b"\n"
    above = others * (before // 80) + b"y" * (before % 80) + b"\n"
    for length, is_cut in ((LONGEST_BYTES + 64, False), (LONGEST_BYTES + 65, True), (2 * LONGEST_BYTES, True)):
        facts = LogFacts()
        found = [line.text for line in read_lines(io.BytesIO(above + b"z" * length + b"\nlast\n"), facts)]
        assert facts.cut == is_cut
        assert (len(found[-2]) < length) == is_cut
        assert found[-1] == "last"


def test_a_line_of_a_gigabyte_is_read_in_little_memory():
    code = """
        import resource
        from test_log_text import Endless
        from self_healing.readers.log_text import read_lines
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = list(read_lines(Endless(b"z" * 2**20, 1024, head=b"begin ", tail=b" end\\nnext")))
        assert [line.number for line in found] == [1, 2] and found[0].text.endswith("z end"), found[0].text[-50:]
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    here = Path(__file__).parent
    environ = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parents[1] / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30 * 1024, "kilobytes more than before"


@pytest.mark.parametrize("piece", [b"\r", b"\0", b" ", b"\x1b[", b"\x1b]", b"\b", b"\xff", b"a\r"])
def test_streams_of_one_thing_end_and_stay_small(piece):
    found = list(read_lines(Endless(piece * (2**16 // len(piece)), 64, head=b"log ", tail=b"\nend")))
    assert found[-1] == (2, "end")
    assert sum(len(line.text) for line in found) < 2 * LONGEST_BYTES


# --- packed, encoded, pointed to --------------------------------------------------------------------------------


def test_gzip_is_unpacked_also_several_in_one_file():
    facts = LogFacts()
    assert lines(gzip.compress(b"a\nb") + gzip.compress(b"c\nd"), facts) == [(1, "a"), (2, "bc"), (3, "d")]
    assert facts.is_packed
    assert facts.damage == ""


@pytest.mark.parametrize("step", [7, 10**6])
def test_gzip_that_is_cut_off_gives_what_it_holds_and_says_so(step):
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(20_000)))
    facts = LogFacts()
    found = list(read_lines(Dribble(whole[: len(whole) // 2], step), facts))
    assert len(found) > 1000
    assert found[100] == (101, "line 100")
    assert facts.damage == "the gzip archive ends in the middle"


def test_gzip_with_damage_gives_what_came_before_it():
    whole = bytearray(gzip.compress(os.urandom(300_000).hex().encode()))
    whole[-1000:-900] = b"\xff" * 100
    facts = LogFacts()
    assert lines(bytes(whole), facts)
    assert facts.damage.startswith("the gzip archive is damaged")


def test_a_small_archive_of_a_huge_line_is_unpacked_piece_by_piece():
    packed = gzip.compress(b"q" * 50_000_000 + b"\nend")
    found = list(read_lines(io.BytesIO(packed)))
    assert len(packed) < 100_000
    assert found[1] == (2, "end")
    assert len(found[0].text) < LONGEST_BYTES + 64


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_the_encodings_of_windows_are_read(encoding):
    assert texts("loss \u00e4\r\n2.5\r\n".encode(encoding)) == ["loss \u00e4", "2.5"]


def test_a_pointer_is_called_one():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"
    for data in (pointer, gzip.compress(pointer)):
        with pytest.raises(NotFetched, match=r"Git LFS pointer.*123,456 bytes.*git lfs pull"):
            lines(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\0\0\n", "nothing but blanks"),
        (b"\x80\x04\x95", "a pickle"),
        (bytes(range(32)) * 99, "a binary file"),
    ],
)
def test_what_is_no_text_is_refused_in_one_sentence(data, said):
    with pytest.raises(InputError, match=f"run.log: .*{said}; expected the text of a log") as caught:
        list(read_lines(io.BytesIO(data), name="run.log"))
    assert "\n" not in str(caught.value)


def test_a_log_full_of_colours_is_text():
    assert texts(b"\x1b[1mx\x1b[0m" * 1000) == ["x" * 1000]


def test_logs_are_opened_by_path_and_from_standard_input(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"one\ntwo")
    with open_log(path) as file:
        assert [line.text for line in read_lines(file)] == ["one", "two"]
    code = (
        "from self_healing.readers.log_text import open_log, read_lines\n"
        "with open_log('-') as file: print([line.text for line in read_lines(file)])"
    )
    with path.open("rb") as stdin:
        done = subprocess.run([sys.executable, "-c", code], stdin=stdin, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['one', 'two']"


@pytest.mark.parametrize("name", ["none.log", ".", "pipe", "nul\0"])
def test_what_cannot_be_opened_is_refused_and_never_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected the text of a log"), open_log(f"{tmp_path}/{name}"):
        pass


# --- any bytes --------------------------------------------------------------------------------------------------

FRAGMENTS = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\b",
        b"\x1b[31m",
        b"\x1b]0;t",
        b"\x1b",
        b"\xe2\x96\x88",
        b"\xe2",
        b"loss: 1.5",
        b"50%|",
        b" ",
        b"Error",
    ]
)
BYTES = st.lists(FRAGMENTS | st.binary(max_size=8), max_size=40).map(b"".join)


def readable(data):
    try:
        return lines(data)
    except InputError:
        return None


@given(BYTES)
@settings(max_examples=400, deadline=None)
@example(b"text\x1b\n[31m")
def test_any_bytes_give_clean_lines_in_order(data):
    found = readable(b"log: " * 20 + data)
    if found is None:
        return
    numbers = [line.number for line in found]
    assert numbers == sorted(numbers)
    assert set(numbers) <= set(range(1, data.count(b"\n") + 2))
    for line in found:
        assert all(c == "\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in line.text), ascii(line.text)


@given(BYTES, st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_lines_do_not_depend_on_how_the_bytes_arrive(data, step):
    data = b"log: " * 20 + data
    found = readable(data)
    if found is not None:
        assert list(read_lines(Dribble(data, step))) == found


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=30), min_size=1, max_size=20)
)
@settings(max_examples=200, deadline=None)
def test_clean_text_comes_back_as_it_is(wanted):
    data = "\n".join(["beginning", *wanted, "end"]).encode()
    assert texts(data) == ["beginning", *wanted, "end"]
