"""Texts are parsed by several threads at a time: Python 3.11's own parser does not bear that."""

from __future__ import annotations

import ast
import sys
import threading

import pytest

from self_healing.preflight.subject.parsing import literal, parsed

TEXT = "def f(a, b=(1, [2, {3: 4}])):\n    return [x for x in (a, b) if x or (lambda y: y + 1)(x)]\n" * 20


class Circle:
    """Found by the garbage collector only, in the midst of whatever makes many objects."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(50):
            pass


@pytest.fixture
def hasty_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def parse_in_threads(*ways):
    failed = []

    def parse(way):
        for _ in range(40):
            circles = [Circle() for _ in range(50)]
            del circles
            try:
                way(TEXT)
            except SystemError as error:
                failed.append((way, error))

    threads = [threading.Thread(target=parse, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.usefixtures("hasty_threads")
def test_threads_do_not_disturb_one_another():
    assert parse_in_threads(*[parsed] * 8) == []


@pytest.mark.usefixtures("hasty_threads")
def test_nor_do_those_that_do_not_ask_us():
    assert [error for way, error in parse_in_threads(*[parsed] * 4, *[ast.parse] * 4) if way is parsed] == []


def test_what_is_wrong_with_a_text_is_said():
    with pytest.raises(SyntaxError, match=r"train\.py"):
        parsed("def f(:", "train.py")
    with pytest.raises(ValueError, match="malformed"):
        literal("[f()]")
    assert literal("[1, {'a': (2,)}]") == [1, {"a": (2,)}]
