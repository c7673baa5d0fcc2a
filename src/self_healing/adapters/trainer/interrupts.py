"""Signals that ask a run to end: noted when they come, acted on at the next step boundary, then passed on."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

logger = logging.getLogger("self_healing.interrupts")

FREE_FOR_USE = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""Signals that programs use as they like: where one has a handler of its own, or does not name it, it only warns."""


class Interrupts:
    """Handlers that live only while training does, and are chained to those that were there before."""

    def __init__(self, numbers: Iterable[signal.Signals], preempting: Iterable[signal.Signals] = ()) -> None:
        self.numbers = tuple(numbers)
        self.preempting = frozenset(preempting)
        """Signals by which a scheduler takes the machine away."""
        self.received: signal.Signals | None = None
        """The signal that has come and was not acted on yet."""
        self.saves_for: signal.Signals | None = None
        """The signal because of which the run is saved as soon as its step is logged."""
        self.on_signal: Callable[[int], None] = nobody_listens
        self.while_waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        """Goes around every pause that ends early where a signal comes."""
        self._before: dict[signal.Signals, Any] = {}
        self._former: dict[signal.Signals, Any] = {}
        """The handlers that were there before, also when they are back in place."""
        self._process = os.getpid()

    def install(self) -> None:
        """Take the signals; outside the main thread Python allows no handlers, and none are taken."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("training runs outside the main thread: signals are left to the program")
            return
        for number in self.numbers:
            self._before[number] = self._former[number] = signal.signal(number, self._note)
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

    def is_warning(self, number: signal.Signals) -> bool:
        """Say whether a signal only announces an end, or means something to the program: training goes on after it."""
        return number in FREE_FOR_USE and (number not in self.preempting or callable(self._former.get(number)))

    def is_preemption(self, number: signal.Signals) -> bool:
        """Say whether a signal takes the machine away from a program that has nothing to say about it itself."""
        return number in self.preempting and self._former.get(number, signal.SIG_DFL) in (signal.SIG_DFL, None)

    @property
    def ending(self) -> list[signal.Signals]:
        """The signals that were taken and end the training."""
        return [number for number in self._former if not self.is_warning(number)]

    def pass_on(self, number: signal.Signals) -> None:
        """Let the former handler have the signal, as if we had not been there; a mere warning only to a real one."""
        handler = self._before.get(number)
        if self.is_warning(number):
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
        came = signal.Signals(number)
        if self.received is not None and not self.is_warning(came):  # asked twice: do not make them wait for a step
            handler = self._before.get(came)
            self.restore()
            if callable(handler):
                handler(number, frame)
                return
            os.kill(os.getpid(), number)
            return
        self.received = came
        self.on_signal(number)


def signals_left_to_us(args: Any, preempting: Iterable[signal.Signals] = ()) -> list[signal.Signals]:
    """Return the signals we may take: transformers' own just-in-time checkpoint wins where it is switched on."""
    taken = {signal.SIGTERM} if getattr(args, "enable_jit_checkpoint", False) else set()
    wanted = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, *preempting))
    return [number for number in wanted if number not in taken]


def nobody_listens(_number: int) -> None:
    """Stand for a run that is over."""
