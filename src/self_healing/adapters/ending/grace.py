"""Sees to it that a run which is asked to end has a state on disk in time, also where its step does not end in time.

Signals are answered at the end of a step, with the newest weights. A step may take longer than a scheduler waits, and a
call that hangs on a device keeps Python from running any handler. So a thread of ours hears of the signal too, through
the file that the interpreter writes to at once, and acts if the training thread has not come by after a while.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("self_healing.interrupts")

SECURE_AFTER = 0.5
"""The share of the grace time after which the newest state in memory is written, without waiting for the step any more."""
LEAVE_AFTER = 0.9
"""The share after which the process ends, where the step has still not ended and what could be saved is on disk."""
_END = 0
"""What is written to end the thread; no signal has this number."""


class GraceWatch:
    """Counts down from the moment in which a signal comes.

    Args:
        grace_s: How long whoever sends the signal waits.
        secure: Puts the newest state of host memory on disk, given how long it may wait for it; says whether it is there.
        leave: Ends the process, where whoever has sent the signal did not ask for anything else.

    """

    def __init__(self, grace_s: float, secure: Callable[[float], bool], leave: Callable[[int], None]) -> None:
        self.grace_s = grace_s
        self._secure = secure
        self._leave = leave
        self._numbers: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None
        self._listens = False
        self._before = -1
        self._is_answered = threading.Event()
        self._claim = threading.Lock()
        """Held by whoever answers the signal: the training thread, or the one that ends the process."""
        self._is_ours = False

    def begin(self, numbers: frozenset[int]) -> None:
        """Listen for signals whose handlers are installed; outside the main thread there are none."""
        if threading.current_thread() is not threading.main_thread() or not numbers:
            return
        self._numbers = numbers
        reading, writing = self._pipe = os.pipe()
        os.set_blocking(writing, False)
        self._before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._listens = self._before == -1
        if not self._listens:  # an event loop listens there; ours hears from the handler, which is later
            signal.set_wakeup_fd(self._before)
        _watching.append(self)
        self._thread = threading.Thread(target=self._watch, args=(reading,), name="self-healing-grace", daemon=True)
        self._thread.start()

    def came(self, number: int) -> None:
        """Hear of a signal from its handler."""
        if self._pipe is not None and not self._listens:
            os.write(self._pipe[1], bytes([number]))

    def answered(self) -> None:
        """Leave the rest to the training thread, which has come to the end of its step."""
        if not self._is_ours:
            self._claim.acquire()  # for ever, where the process is being ended
            self._is_ours = True
            self._is_answered.set()

    def end(self) -> None:
        """Stop listening; waits for a state that is being written."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pipe is not None:
            self._hang_up(thread, self._pipe)
            self._pipe = None
        self._secure, self._leave = _nothing, _nobody  # which hold the session

    def _hang_up(self, thread: threading.Thread, pipe: tuple[int, int]) -> None:
        self.forget()
        self.answered()
        os.write(pipe[1], bytes([_END]))
        thread.join()
        for descriptor in pipe:
            os.close(descriptor)

    def forget(self) -> None:
        """Let the interpreter write to nobody any more: also in a forked process, whose signals are not ours."""
        if self in _watching:
            _watching.remove(self)
        if self._listens:
            signal.set_wakeup_fd(self._before)
            self._listens = False

    def _watch(self, reading: int) -> None:
        number: int | None = None
        while number is None:
            heard = os.read(reading, 64)
            if not heard or _END in heard:
                return
            number = next((each for each in heard if each in self._numbers), None)
        began = time.monotonic()
        if self._is_answered.wait(self.grace_s * SECURE_AFTER):
            return
        if not self._secure(self.grace_s * (LEAVE_AFTER - SECURE_AFTER) / 2):
            return  # to end now would lose more than to wait for the end of the step
        self._is_answered.wait(began + self.grace_s * LEAVE_AFTER - time.monotonic())
        if self._claim.acquire(blocking=False):
            self._leave(number)
            self._claim.release()


_watching: list[GraceWatch] = []


def _forked() -> None:
    for watch in tuple(_watching):
        watch.forget()


os.register_at_fork(after_in_child=_forked)


def _nothing(_seconds: float) -> bool:
    """Stand for a run that is over."""
    return False


def _nobody(_number: int) -> None:
    """Stand for a run that is over."""
