"""Signals that ask a run to end: noted when they come, acted on at the next step boundary, then passed on."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

logger = logging.getLogger("self_healing.interrupts")

WARNINGS = frozenset({signal.SIGUSR1})
"""Signals that only announce an end, as Slurm's do: training goes on after the checkpoint."""


class Interrupts:
    """Handlers that live only while training does, and are chained to those that were there before."""

    def __init__(self, numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)) -> None:
        self.numbers = tuple(numbers)
        self.received: signal.Signals | None = None
        """The signal that has come and was not acted on yet."""
        self._before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def install(self) -> None:
        """Take the signals; outside the main thread Python allows no handlers, and none are taken."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("training runs outside the main thread: signals are left to the program")
            return
        for number in self.numbers:
            self._before[number] = signal.signal(number, self._note)
        self._process = os.getpid()

    def restore(self) -> None:
        """Put the former handlers back."""
        while self._before:
            number, handler = self._before.popitem()
            # None stands for a handler that was not installed from Python and cannot be put back from there.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def take(self) -> signal.Signals | None:
        """Return the signal that has come, once."""
        received, self.received = self.received, None
        return received

    def pass_on(self, number: signal.Signals) -> None:
        """Let the former handler have the signal, as if we had not been there; a mere warning only to a real one."""
        handler = self._before.get(number)
        if number in WARNINGS:
            if callable(handler):
                handler(number, None)
            return
        self.restore()
        os.kill(os.getpid(), number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child that was forked during training: the signal is its own
            self.restore()
            os.kill(os.getpid(), number)
            return
        if self.received is not None and number not in WARNINGS:  # asked twice: do not make them wait for a step
            handler = self._before.get(signal.Signals(number))
            self.restore()
            if callable(handler):
                handler(number, frame)
                return
            os.kill(os.getpid(), number)
            return
        self.received = signal.Signals(number)


def signals_left_to_us(args: Any) -> list[signal.Signals]:
    """Return the signals we may take: transformers' own just-in-time checkpoint wins where it is switched on."""
    taken = {signal.SIGTERM} if getattr(args, "enable_jit_checkpoint", False) else set()
    return [number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT) if number not in taken]
