"""A thread that delivers to one place, so that whoever sends never waits for it.

Each place has a courier of its own: one that hangs keeps nothing from the others.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable

MOST_WAITING = 256
"""Deliveries that may wait; more are lost, and counted."""


class Parcel:
    """One delivery: done, failed, or lost because too many were waiting."""

    def __init__(self, deliver: Callable[[], object], on_over: Callable[[Parcel], None] | None = None) -> None:
        # What trackers call the current run is a variable of the context.
        self._context = contextvars.copy_context()
        self._deliver = deliver
        self._on_over = on_over
        """Is told by whichever thread ends it, before anybody who waits for it goes on."""
        self._is_over = threading.Event()
        self._once = threading.Lock()
        """Taken by whoever ends it: the courier, or who has waited for long enough."""
        self.result: object = None
        self.error: BaseException | None = None
        self.is_lost = False

    def deliver(self) -> None:
        """Do it, by the courier; what is raised is kept."""
        result: object = None
        failed: BaseException | None = None
        try:
            result = self._context.run(self._deliver)
        except BaseException as error:  # noqa: BLE001  # the fence: kept for whoever sent it, counted and told
            failed = error
        if self._once.acquire(blocking=False):
            self.result, self.error = result, failed
            self._end()

    def lose(self) -> None:
        """Give it up, also while it is under way: what comes of it after all is nobody's concern any more."""
        if self._once.acquire(blocking=False):
            self.is_lost = True
            self._end()

    def _end(self) -> None:
        try:
            if self._on_over is not None:
                self._on_over(self)
        finally:
            self._is_over.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is over, and say whether it is."""
        return self._is_over.wait(timeout_s)

    def take_over_context(self) -> None:
        """Make it as though the thread that calls this had done it: what was set in the context is set here, too."""
        here = contextvars.copy_context()
        for variable, value in self._context.items():
            if variable not in here or here[variable] is not value:
                variable.set(value)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self._is_over.is_set()


class Courier:
    """Delivers parcels one after the other, in the order in which they were sent."""

    def __init__(self, name: str, *, most_waiting: int = MOST_WAITING) -> None:
        self.name = name
        self._most_waiting = most_waiting
        self._waiting: deque[Parcel] = deque()
        self._at_hand: Parcel | None = None
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._pid = os.getpid()

    def send(self, deliver: Callable[[], object], on_over: Callable[[Parcel], None] | None = None) -> Parcel:
        """Have something delivered; never waits."""
        parcel = Parcel(deliver, on_over)
        with self._wake:
            is_taken = (
                not self._is_closed and os.getpid() == self._pid and len(self._waiting) < self._most_waiting
            )  # a forked child has no thread that would deliver
            if is_taken:
                self._waiting.append(parcel)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"self-healing-{self.name}", daemon=True)
                    self._thread.start()
                self._wake.notify_all()
        if not is_taken:
            parcel.lose()
        return parcel

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent is over."""
        return not self._waiting and self._at_hand is None

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was sent is over, and say whether it is."""
        with self._wake:
            return self._wake.wait_for(lambda: self.is_idle, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for what was sent and end; what is not delivered by then is lost."""
        self.flush(timeout_s)
        with self._wake:
            self._is_closed = True
            lost = [*([self._at_hand] if self._at_hand is not None else []), *self._waiting]
            self._waiting.clear()
            self._wake.notify_all()
        for parcel in lost:
            parcel.lose()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                parcel = self._at_hand = self._waiting.popleft()
            parcel.deliver()
            with self._wake:
                self._at_hand = None
                self._wake.notify_all()


def close_all(couriers: list[Courier], timeout_s: float) -> None:
    """Close couriers within a time for all of them together."""
    until = time.monotonic() + timeout_s
    for courier in couriers:
        courier.close(max(0.0, until - time.monotonic()))
