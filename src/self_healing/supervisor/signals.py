"""Signals to the supervisor, taken one by one by its loop instead of wherever they happen to arrive."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WARNING = (signal.SIGUSR1, signal.SIGUSR2)
"""Whether they end the job is the command's to say."""
FORWARDED = (*ENDING, *WARNING)


class ToldToEnd(Exception):  # nothing has gone wrong
    """Something that takes long was given up for a signal."""


class SignalDesk:
    """Takes signals in while it is open; the handlers of before are put back at its end."""

    def __init__(self) -> None:
        self.asked_to_end: int | None = None
        """The signal that has told the supervisor to end, the first of them."""
        self.on_pause: Callable[[bool], None] = lambda _is_paused: None
        """Called with True before the terminal's Ctrl-Z stops this process, and with False when it goes on."""
        self._gives_up = False
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}
        self._woken, self._wake = os.pipe()
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        """Begin to take signals."""
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGWINCH):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the job is to outlive its terminal
            self._before[number] = signal.signal(number, self._take)
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put everything back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        for end in (self._woken, self._wake):
            os.close(end)

    @property
    def is_to_end(self) -> bool:
        """Whether it was told to end, also by a signal that nobody has taken yet."""
        return self.asked_to_end is not None or any(number in ENDING for number in self._waiting)

    def taken(self) -> list[int]:
        """Return the signals since the last call, in their order."""
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            if number in ENDING:
                self.told_to_end_by(number)
        return waiting

    def told_to_end_by(self, number: int) -> None:
        """Note the signal that ends the job; the first one counts."""
        self.asked_to_end = self.asked_to_end or number

    def wait(self, seconds: float, *descriptors: int) -> None:
        """Wait until a descriptor can be read, a signal comes or the time is over."""
        ready, _, _ = select.select([self._woken, *descriptors], [], [], seconds)
        if self._woken in ready:
            with suppress(BlockingIOError):
                while os.read(self._woken, 512):
                    pass

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Do something that takes long and may be left half done: a signal that ends the job ends it at once.

        Raises:
            ToldToEnd: such a signal has come, or had come before.

        """
        self._gives_up = True
        try:
            if self.is_to_end:
                raise ToldToEnd
            yield
        finally:
            self._gives_up = False

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._waiting.append(number)
        if self._gives_up and number in ENDING:
            self._gives_up = False
            raise ToldToEnd

    def _pause(self, number: int, _frame: FrameType | None) -> None:
        """Stop as any program would; where that has no effect (nobody could let it go on), it goes on at once."""
        self.on_pause(True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._pause)
        self.on_pause(False)
