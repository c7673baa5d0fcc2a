"""Signals that ask a run to end: noted when they come, acted on at the next step boundary, then passed on."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...config import HealingConfig

logger = logging.getLogger("self_healing.interrupts")

FREE_FOR_USE = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""Signals that programs use as they like: where one has a handler of its own, or does not name it, it only warns."""
SAME_REQUEST_SECONDS = 2.0
"""A signal that comes again within this time is the same request: `timeout` and schedulers send theirs to a process and then to its group."""


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
        self.repeats = 0
        """How often the request to end came again at once, which counts as one."""
        self._asked: tuple[signal.Signals, float] | None = None
        """The first signal that asked the run to end, be it acted on or not, and when."""
        self._process = os.getpid()

    def install(self) -> None:
        """Take the signals that are not ignored; outside the main thread Python allows no handlers, and none are taken."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("training runs outside the main thread: signals are left to the program")
            return
        for number in self.numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background, say: it is to go on
                self._before[number] = self._former[number] = signal.signal(number, self._note)
        self._process = os.getpid()

    def restore(self) -> None:
        """Put the former handlers back, but for signals that somebody has taken since: those keep theirs."""
        while self._before:
            number, handler = self._before.popitem()
            if signal.getsignal(number) == self._note:
                signal.signal(number, _still_there(handler, number))

    def take(self) -> signal.Signals | None:
        """Return the signal that has come, once."""
        received, self.received = self.received, None
        return received

    def is_warning(self, number: signal.Signals) -> bool:
        """Say whether a signal only announces an end, or means something to the program: training goes on after it."""
        return number in FREE_FOR_USE and (number not in self.preempting or callable(self._of_program(number)))

    def is_preemption(self, number: signal.Signals) -> bool:
        """Say whether a signal takes the machine away from a program that has nothing to say about it itself."""
        return number in self.preempting and self._of_program(number) == signal.SIG_DFL

    @property
    def ending(self) -> list[signal.Signals]:
        """The signals that were taken and end the training."""
        return [number for number in self._former if not self.is_warning(number)]

    def pass_on(self, number: signal.Signals) -> None:
        """Let the former handler have the signal, as if we had not been there; a mere warning only to a real one."""
        if not self.is_warning(number):
            self._end_at_once(number, None)
        elif callable(handler := self._before.get(number)):
            handler(number, None)

    def holds(self, number: int) -> bool:
        """Say whether a signal comes to this run: it was taken, and not given back."""
        return number in self._before

    def former(self, number: int) -> Any:
        """Return the handler that was there when the signal was taken."""
        return self._former.get(signal.Signals(number))

    def _of_program(self, number: signal.Signals) -> Any:
        """Return the handler that the program itself has, whatever other runs have put over it."""
        return _still_there(self.former(number), number, is_ours_too=False)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.holds(number):  # the run is over, and a handler that was put over ours passes the signal on
            _hand_over(_still_there(self._note, number), number, frame)
            return
        came = signal.Signals(number)
        if os.getpid() != self._process:  # a child that was forked during training: the signal is its own
            self._end_at_once(came, frame)
            return
        if not self.is_warning(came):
            if self._asked is None:
                self._asked = (came, time.monotonic())
            elif self._is_repeated(came):
                self.repeats += 1
                return
            else:  # asked twice: do not make them wait for a step
                self._end_at_once(came, frame)
                return
        elif self.received is not None and not self.is_warning(self.received):
            return  # the run is saved and ends anyway
        self.received = came
        self.on_signal(number)

    def _is_repeated(self, came: signal.Signals) -> bool:
        """Say whether a signal is the first one once more, and no impatience; Ctrl-C is pressed twice on purpose."""
        assert self._asked is not None
        first, at = self._asked
        return came == first and came != signal.SIGINT and time.monotonic() - at < SAME_REQUEST_SECONDS

    def _end_at_once(self, came: signal.Signals, frame: FrameType | None) -> None:
        handler = self._before.get(came, signal.getsignal(came))  # another rank may have heard what is ignored here
        self.restore()
        _hand_over(_still_there(handler, came), came, frame)


def interrupts_of(config: HealingConfig, args: Any) -> Interrupts:
    """Return the handlers that a configuration asks for, for a training with these arguments; none is installed yet."""
    preempting = [signal.Signals[name] for name in config.preemption_signals]
    return Interrupts(signals_left_to_us(args, preempting), preempting)


def signals_left_to_us(args: Any, preempting: Iterable[signal.Signals] = ()) -> list[signal.Signals]:
    """Return the signals we may take: transformers' own just-in-time checkpoint wins where it is switched on."""
    taken = {signal.SIGTERM} if getattr(args, "enable_jit_checkpoint", False) else set()
    wanted = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, *preempting))
    return [number for number in wanted if number not in taken]


def _still_there(handler: Any, number: int, *, is_ours_too: bool = True) -> Any:
    """Return a handler that was there before, or the one before that where it belongs to a run that is over.

    Runs may be guarded one after the other without being closed, or two at once, and end in any order.
    """
    while isinstance(owner := getattr(handler, "__self__", None), Interrupts):
        if is_ours_too and owner.holds(number):
            break
        handler = owner.former(number)
    # None stands for a handler that was not installed from Python and cannot be put back from there.
    return signal.SIG_DFL if handler is None else handler


def _hand_over(handler: Any, number: int, frame: FrameType | None) -> None:
    """Let a former handler have a signal, or what the system does where there is none."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def nobody_listens(_number: int) -> None:
    """Stand for a run that is over."""
