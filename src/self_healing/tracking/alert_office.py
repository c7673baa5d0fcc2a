"""Where alerts are made and handed to couriers, on a thread of its own: the one that trains only leaves entries here."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from ..core.ledger import Entry
from ..core.secrets import Masker, label_of_url, secrets_of_urls, strip_control
from ..report.announcements import Announcement, Announcer, Level
from .courier import Courier, Parcel, close_all
from .message import Message
from .notify import notify
from .webhook import post

logger = logging.getLogger("self_healing.alerts")

LAST_WAIT_S = 5.0
"""How long the end of a run waits for alerts that are under way, all together."""
MOST_ENTRIES = 4096
"""Entries that may wait to be looked at; the thread looks at thousands a second."""
LONGEST_TEXT = 4000
_LOG_LEVELS = {Level.INFO: logging.INFO, Level.WARN: logging.WARNING, Level.ERROR: logging.ERROR}


@dataclass(slots=True)
class Sink:
    """One place that alerts go to."""

    name: str
    """As people may see it."""
    send: Callable[[Message], object]
    """Returns False where there is nobody there any more to take it, which is no loss."""
    courier: Courier
    is_own: bool = True
    """The courier is the office's, which closes it; else it is a tracker's."""
    sent: int = 0
    lost: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class AlertOffice:
    """The alerts of one run: made from the entries of its ledger, sent to all sinks."""

    def __init__(
        self,
        *,
        run: str,
        urls: Iterable[str] = (),
        note: Callable[[str, str], None],
        environ: dict[str, str] | None = None,
    ) -> None:
        self._run = run
        self._note = note
        """Writes a remark into the ledger and the log."""
        urls = tuple(urls)
        self._masker = Masker(dict(os.environ) if environ is None else environ, secrets_of_urls(urls))
        self.pages: dict[str, str] = {}
        """Addresses where the run is to be seen, by tracker."""
        self.sinks: list[Sink] = []
        self._give_up = threading.Event()
        self._announcer = Announcer()
        self._entries: deque[Entry] = deque()
        self._overlooked = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wants_all = self._is_busy = self._is_closed = False
        for url in dict.fromkeys(urls):
            self.add_sink(label_of_url(url), partial(self._send_to_url, url))

    def add_sink(self, name: str, send: Callable[[Message], object], courier: Courier | None = None) -> None:
        """Have alerts sent somewhere, in the order of a courier where one is given."""
        own = courier is None
        sink = Sink(name, send, courier if courier is not None else Courier(f"alerts-{len(self.sinks)}"), own)
        self.sinks.append(sink)

    def remove_sinks_of_others(self) -> None:
        """Let go of the sinks of trackers, which end with the training."""
        self.sinks = [sink for sink in self.sinks if sink.is_own]

    def take(self, entry: Entry) -> None:
        """Leave an entry of the ledger to be looked at; never waits, never raises."""
        if entry.kind in ("config", "signal"):
            return
        with self._wake:
            if self._is_closed:
                return
            if len(self._entries) >= MOST_ENTRIES:
                self._overlooked += 1
                return
            self._entries.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="self-healing-alerts", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def flush(self, timeout_s: float = LAST_WAIT_S) -> bool:
        """Send all there is now, without gathering any more; say whether all of it is over in time."""
        until = time.monotonic() + timeout_s
        if not self.hand_over(timeout_s):
            return False
        return all(sink.courier.flush(max(0.0, until - time.monotonic())) for sink in tuple(self.sinks))

    def hand_over(self, timeout_s: float = 1.0) -> bool:
        """Hand all there is now to the couriers, without waiting for them."""
        with self._wake:
            if self._thread is None or threading.current_thread() is self._thread:
                return True
            self._wants_all = True
            self._wake.notify_all()
            return self._wake.wait_for(lambda: not self._wants_all and not self._is_busy, timeout_s)

    def close(self, timeout_s: float = LAST_WAIT_S) -> None:
        """Send what is left within a time, end the threads, and say how many alerts were lost in all."""
        until = time.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()
        self._give_up.set()
        close_all([sink.courier for sink in self.sinks if sink.is_own], max(0.1, until - time.monotonic()))
        if self._thread is not None:
            self._thread.join(1.0)
        for told in self.losses():
            logger.warning("%s", told)
        self._note = _nobody_reads  # whoever wrote it down is held on to no longer

    def losses(self) -> list[str]:
        """Return a sentence for each place that alerts were lost on the way to."""
        told = [
            f"{sink.lost} of {sink.lost + sink.sent} alerts to {sink.name} were lost"
            for sink in self.sinks
            if sink.lost
        ]
        overlooked = self._overlooked + self._announcer.forgotten
        return told + ([f"{overlooked} alerts were never made: too many at once"] if overlooked else [])

    def describe(self) -> str:
        """Return where an alert goes to, for whoever has asked for one."""
        return ", ".join(["the log", *(sink.name for sink in self.sinks)])

    # -- the office's own thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._look():
                pass
        except Exception as error:
            # The fence: a bug of ours ends the alerts, not the training.
            logger.exception("alerts have failed and are sent no longer; training goes on")
            self._note("alerts-crashed", f"no more alerts are sent: {type(error).__name__}: {error}")
        finally:
            with self._wake:
                self._is_closed = True
                self._wants_all = self._is_busy = False
                self._entries.clear()
                self._wake.notify_all()

    def _look(self) -> bool:
        """Wait for something to do and do it; say whether there may be more."""
        with self._wake:
            due_s = self._announcer.next_due_s()
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            self._wake.wait_for(lambda: self._entries or self._wants_all or self._is_closed, timeout_s)
            entries, wants_all = list(self._entries), self._wants_all or self._is_closed
            self._entries.clear()
            self._is_busy = True
        for entry in entries:
            self._announcer.take(entry, time.monotonic())
        now_s = time.monotonic()
        for announcement in self._announcer.rest(now_s) if wants_all else self._announcer.due(now_s):
            self._send(announcement)
        with self._wake:
            self._is_busy = False
            if wants_all:
                self._wants_all = False
            self._wake.notify_all()
            return not self._is_closed

    def _send(self, announcement: Announcement) -> None:
        message = self._message(announcement)
        if not announcement.is_logged or announcement.count > 1:
            line = " | ".join([message.title, *message.text.split("\n")])
            logger.log(_LOG_LEVELS[announcement.level], "%s", line)
        for sink in tuple(self.sinks):
            sink.courier.send(partial(sink.send, message), partial(self._is_over, sink))

    def _is_over(self, sink: Sink, parcel: Parcel) -> None:
        """Count a delivery, and tell of the first that failed."""
        is_lost = parcel.is_lost or parcel.error is not None
        with sink.lock:
            sink.sent += not is_lost and parcel.result is not False
            sink.lost += is_lost
            is_first = is_lost and sink.lost == 1
        if is_first:
            why = "too many are waiting, or the run has ended" if parcel.error is None else _words(parcel.error)
            self._note(
                "alert-lost",
                self._clean(f"an alert to {sink.name} was lost: {why}; training goes on, and each later one is tried"),
            )

    def _send_to_url(self, url: str, message: Message) -> None:
        if url.partition("://")[0].lower() in ("http", "https"):
            post(url, message, self._give_up)
        else:
            notify(url, message)

    def _message(self, announcement: Announcement) -> Message:
        pages = tuple(self.pages.values())
        words = announcement.in_words() + (f"\nSee {' and '.join(pages)}" if pages else "")
        return Message(
            level=announcement.level.value,
            title=self._clean(announcement.title),
            text=self._clean(words)[:LONGEST_TEXT],
            run=self._clean(self._run),
            step=announcement.step,
            first_step=announcement.first_step,
            count=announcement.count,
            incident=self._clean(announcement.incident),
            references=tuple(self._clean(reference) for reference in announcement.references),
            pages=pages,
            time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def _clean(self, text: str) -> str:
        return self._masker.text(strip_control(self._masker.text(text)))


def _nobody_reads(_name: str, _text: str) -> None:
    """Stand for a ledger that is closed."""


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
