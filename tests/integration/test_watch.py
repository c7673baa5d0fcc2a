"""`heal watch` on a real terminal while a training heals: what it shows before, during and after; and that it only reads."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from .browser import tool

pytestmark = pytest.mark.torch
WIDTH, HEIGHT = 120, 40


class Terminal:
    """A terminal that nobody sees."""

    def __init__(self, tmux, name):
        self._tmux = [tmux, "-L", name, "-f", os.devnull]

    def call(self, *args):
        return subprocess.run([*self._tmux, *args], capture_output=True, text=True, check=True, timeout=20).stdout

    def start(self, command, **environ):
        given = [each for key, value in environ.items() for each in ("-e", f"{key}={value}")]
        self.call("new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), *given, command)

    def screen(self):
        return self.call("capture-pane", "-p", "-t", "0")

    def until(self, *words, timeout_s=60.0):
        """Return the screen once it shows all of these words."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            shown = self.screen()
            if all(word in shown for word in words):
                return shown
            time.sleep(0.1)
        pytest.fail(f"{words} did not come up on the screen:\n{self.screen()}")


@contextmanager
def terminal(name):
    made = Terminal(tool("tmux"), name)
    try:
        yield made
    finally:
        subprocess.run([*made._tmux, "kill-server"], capture_output=True, check=False, timeout=20)


def watching(*args):
    heal = shlex.join([sys.executable, "-m", "self_healing", "watch", "--every", "0.3", *map(str, args)])
    return f"{heal}; echo ended with $?; sleep 30"


def test_a_training_is_watched_from_before_it_begins_until_after_its_end(tmp_path):
    from self_healing.drills.demonstration import HEALED, QUICK, _one_thread, _train

    folder = tmp_path / HEALED
    frames = []
    with terminal(f"heal-{os.getpid()}") as screen:
        screen.start(watching(folder), LANG="C.UTF-8")
        screen.until("waiting for a run")
        over = threading.Event()

        def look():
            while not over.is_set():
                frames.append(screen.screen())
                time.sleep(0.15)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            with _one_thread():
                result = _train(HEALED, folder, QUICK, lambda *_: None)
        finally:
            over.set()
            looking.join(20)
        shown = screen.until("completed", "step 80 of 80")
        for line in (
            "Out of memory",
            "Bad record",
            "Network error",
            "healed",
            "loss",
            "gradient",
            "rate",
            "memory",
        ):
            assert line in shown
        assert "\u2588" in shown
        assert max(map(len, shown.splitlines())) <= WIDTH
        files = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        screen.call("send-keys", "-t", "0", "C-c")
        assert "Traceback" not in screen.until("ended with 0", timeout_s=20)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == files
    assert result.updates == QUICK.updates
    live = [frame for frame in frames if "of 80" in frame and "completed" not in frame]
    assert live, "no frame was taken while the training went on"
    assert any("Step not finite" in frame for frame in live)
    assert len({frame.partition("step ")[2].partition(" of 80")[0] for frame in live}) > 2  # it goes on


def test_a_plain_terminal_gets_plain_characters_and_two_ranks_are_followed(tmp_path):
    from ..unit.told_run import Book

    books = [Book(tmp_path, rank=rank, began_s=time.time()) for rank in (0, 1)]
    for step in range(1, 20):
        for book in books:
            book.metrics(step, loss=3.0 / step)
    for book in books:
        book.ledger.flush()
    with terminal(f"heal-plain-{os.getpid()}") as screen:
        screen.start(watching(tmp_path), LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii", PYTHONCOERCECLOCALE="0")
        assert screen.until("rank 0: step 19", "rank 1: step 19").isascii()
        books[1].incident(20, "loss-spike")
        for book in books:
            book.close()
        screen.until("rank 1: step 20", "Loss spike")
        screen.call("send-keys", "-t", "0", "C-c")
        screen.until("ended with 0", timeout_s=20)
