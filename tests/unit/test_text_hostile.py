"""Texts that were made to hurt: nothing hangs, nothing is kept that grows with the text, nothing reaches a terminal."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.core.discover import discover_patterns
from self_healing.diagnosis import TextReading, text_findings
from self_healing.diagnosis.literals import required
from self_healing.diagnosis.sieve import sieve_of
from self_healing.diagnosis.text_finding import TextFinding, shown
from self_healing.readers import Line, read_blocks

PATTERNS = discover_patterns("self_healing.patterns")
SAMPLES = [sample for row in PATTERNS for sample in (*row.matches, *row.but_not)]
FRAGMENTS = [
    "Traceback (most recent call last):\n", '  File "a.py", line 1, in f\n', "[rank0]: ", "[0]:", ("During handling of the above "
    "exception, another exception occurred:\n"), "KeyError: 'x'\n", "Training completed\n", ("generation_batch_size (6) must be "
    "divisible by num_generations (0)"), "batch size (0 x 0) must be evenly divisible by the number of generations per prompt (0)",
    "per_device_train_batch_size=0\n", "learning_rate: 1e999\n", "learning_rate: 0\n", "0/0 [00:00<00:00, ", "\n", "\r", "\x1b[31m",
    "Process 1 has 9999999.9 GiB memory in use", "port: 99999 EADDRINUSE", "rank      : \n", "\x00", "\ud800", "9" * 40, "| ",
]  # fmt: skip


def read(data: bytes) -> list[TextFinding]:
    reading = TextReading(PATTERNS)
    for block in read_blocks(io.BytesIO(data)):
        reading.feed(block)
    return reading.findings()


def test_mutated_texts_are_answered():
    rng = random.Random(7)
    for _ in range(2000):
        parts = [rng.choice(SAMPLES if rng.random() < 0.3 else FRAGMENTS) for _ in range(rng.randrange(1, 8))]
        text = "".join(part[: rng.randrange(1, len(part) + 1)] if rng.random() < 0.4 else part for part in parts)
        for finding in text_findings((Line(1, line) for line in text.split("\n")), PATTERNS):
            assert finding.fix
            assert finding.because
            assert finding.to_json()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=40)), max_size=30))
def test_any_text_is_answered(parts):
    text_findings((Line(1, line) for line in "".join(parts).split("\n")), PATTERNS)


def test_a_match_in_the_middle_of_a_very_long_line_is_found():
    found = read(
        b"[rank1]: " + b"a" * 20_000 + b" torch.OutOfMemoryError: CUDA out of memory. " + b"b" * 20_000 + b"\n"
    )
    assert found[0].fine == "oom_gpu"
    assert all(len(seen.text) <= 400 for seen in found[0].evidence)


def test_nothing_that_a_terminal_obeys_is_shown():
    text = "Traceback (most recent call last):\nKeyError: 'a\x1b]0;owned\x07b\x9b31m\u202ec\x08'"
    for finding in text_findings((Line(n, line) for n, line in enumerate(text.split("\n"), 1)), PATTERNS):
        for seen in finding.evidence:
            assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in seen.text), repr(seen.text)


def test_a_shown_line_is_short():
    assert len(shown("x" * 10**6)) == 400


FLOODS = {
    "nan": b"{'loss': nan, 'grad_norm': nan}\n",
    "exceptions": b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nFooError: bad\n',
    "unfinished": b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n',
    "endless": b'  File "a.py", line 3, in f\n',
    "errors": b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "ranks": b"".join(b"[rank%d]: Traceback (most recent call last):\n" % rank for rank in range(2000)),
}


BEGINNINGS = {"endless": b"Traceback (most recent call last):\n"}


LONG = frozenset({"unfinished", "ranks", "nan", "exceptions"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in FLOODS]
)
def test_a_flood_does_not_fill_memory(name):
    flood, beginning = FLOODS[name], BEGINNINGS.get(name, b"")
    read(flood)  # what is made once is not counted
    peaks = []
    for size in (2**20, 6 * 2**20):
        data = io.BytesIO(beginning + flood * (size // len(flood)))
        tracemalloc.start()
        reading = TextReading(PATTERNS)
        for block in read_blocks(data):
            reading.feed(block)
        reading.findings()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**20, peaks


@pytest.mark.parametrize("name", ["nan", "errors"])
def test_what_is_said_to_the_end_is_not_over(name):
    found = read(FLOODS[name] * 20_000)
    assert found[0].severity.name == "ERROR"
    assert found[0].line == 1


def test_the_end_of_a_text_full_of_exceptions_is_still_read():
    flood = FLOODS["exceptions"] * 2000
    steps = b"{'loss': 1.5, 'epoch': 0.1}\n" * 40_000
    last = b'Traceback (most recent call last):\n  File "z.py", line 9, in z\n    z()\nmylib.LastError: the end\n'
    found = read(flood + steps + last)
    assert "mylib.LastError" in found[0].because


def test_the_standard_library_gives_the_same_answers():
    """Without google-re2 the same lines are found: the fallback runs in a process that cannot import it."""
    program = (
        "import sys; sys.modules['re2'] = None\n"
        "from self_healing.core.discover import discover_patterns\n"
        "from self_healing.diagnosis import text_findings, sieve\n"
        "from self_healing.readers import Line\n"
        "assert sieve.re2 is None\n"
        "rows = discover_patterns('self_healing.patterns')\n"
        "for row in rows:\n"
        "    lines = [Line(i, t) for i, t in enumerate(row.matches[0].split(chr(10)), 1)]\n"
        "    print(row.name, *[f'{f.name}:{f.line}' for f in text_findings(lines, rows)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pytest.importorskip("re2")
    expected = []
    for row in PATTERNS:
        lines = [Line(i, text) for i, text in enumerate(row.matches[0].split("\n"), 1)]
        expected.append(" ".join([row.name, *(f"{f.name}:{f.line}" for f in text_findings(lines, PATTERNS))]))
    assert done.stdout.splitlines() == expected


def test_every_row_runs_on_the_linear_engine():
    re2 = pytest.importorskip("re2")
    for row in PATTERNS:
        if row.text:
            re2.compile(row.text)


def test_every_sample_passes_the_sieve():
    sieve = sieve_of(PATTERNS)
    for row in PATTERNS:
        for sample in row.matches:
            if row.text and not row.text.startswith("^"):
                assert row.name in sieve.rows(sample.encode()), (row.name, sample)


def test_a_text_that_matches_holds_a_word_that_the_row_needs():
    for row in PATTERNS:
        words = required(row.text)
        for sample in row.matches:
            assert not row.text or any(word in sample.lower() for word in words), (row.name, sample)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("abc|de(?:f|g)hij", {"abc", "hij"}),
        (r"x?Ab\d+cdef", {"cdef"}),
        ("(?:a|)b*", set()),
        ("(?:foo){2}", {"foo"}),
    ],
)
def test_needed_words(expression, words):
    assert required(expression) == words
