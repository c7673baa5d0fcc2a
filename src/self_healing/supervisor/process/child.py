"""A supervised command: its output is passed on byte for byte and shown to a watcher; it ends with all that came of it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from . import shim
from .terminal import Channel, open_channels, open_silent_channel

MOST_AT_ONCE = 64 * 2**10
READ_REST_S = 5.0
"""How long what has been printed last may take to be read when nothing is left that could print."""

Watcher = Callable[[int, bytes], None]
"""Given what was printed, and on which stream: 0 standard output or both, 1 standard error."""


@dataclass(frozen=True)
class Ending:
    """How a command has ended."""

    status: int | None
    """The exit code, negative for a signal; None where nobody saw it end."""
    killed: int = 0
    """How many processes had to be killed, the command's own among them."""


class Child:
    """One command that runs; orders to it never wait."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path,
        *,
        grace_s: float,
        watch: Watcher,
        is_shown: bool = True,
    ) -> None:
        """Start the command; what is not shown goes to the watcher alone.

        Raises:
            ConfigError: it cannot be started; the text says why.

        """
        self._watch = watch
        self._passing_on: set[int] = set()
        self._unread = b""
        self._pid: int | None = None
        self._status: int | None = None
        self._failure = "the process that was to start it has died"
        self._killed: int | None = None
        self._orders_end, self._orders = os.pipe()
        self.reports, reports_end = os.pipe()
        """Readable when there is news, see `look`."""
        os.set_blocking(self.reports, False)
        self._is_shown = is_shown
        self._channels = open_channels() if is_shown else [open_silent_channel()]
        command = [sys.executable, "-I", "-S", shim.__file__, str(self._orders_end), str(reports_end), str(grace_s)]
        try:
            self._shim = subprocess.Popen(  # noqa: S603  # the user's own command
                [*command, *argv],
                stdout=self._channels[0].inner, stderr=self._channels[-1].inner, cwd=cwd, env=dict(environ),
                pass_fds=(self._orders_end, reports_end), start_new_session=True,
            )  # fmt: skip
        finally:
            for end in (self._orders_end, reports_end, *(channel.inner for channel in self._channels)):
                os.close(end)
        self._pumps = [
            threading.Thread(target=self._pump, args=(number, channel), name="heal-output", daemon=True)
            for number, channel in enumerate(self._channels)
        ]
        self._wait_for_start(argv[0])
        for pump in self._pumps:
            pump.start()

    @property
    def pid(self) -> int | None:
        """The command's process, as long as it was not seen to end."""
        return self._pid if self._status is None else None

    @property
    def is_held_up(self) -> bool:
        """Whether whoever reads our output takes his time, which the command may have to wait for."""
        return bool(self._passing_on)

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        self._order(f"signal {number}")

    def end(self, grace_s: float) -> None:
        """Ask the command to end, and kill everything after some time."""
        self._order(f"end {grace_s}")

    def kill(self) -> None:
        """Kill everything now."""
        self._order("kill")

    def remove_if_we_die(self, path: Path) -> None:
        """Have a file removed where this process cannot do so itself any more."""
        self._order(f"remove {os.fsencode(path).hex()}")

    def resize(self) -> None:
        """Tell the command that the terminal has another size."""
        for channel in self._channels:
            channel.resize()
        self.signal(signal.SIGWINCH)

    def look(self) -> bool:
        """Take in what was reported; say whether everything is over. Never waits."""
        self._reap_strangers()
        while True:
            try:
                data = os.read(self.reports, 4096)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._take(data)

    def finish(self, is_read: Callable[[], bool] = lambda: True) -> Ending:
        """Read what is left of the output and let go of everything; all is over, or is ended here.

        Whoever reads our output slowly (`| less`) is waited for, as long as `is_read` says so.
        """
        os.close(self._orders)
        self._shim.wait()
        if not self.look() or self._killed is None:  # somebody has killed the shim
            self._killed = _kill_what_is_left()
        for number, pump in enumerate(self._pumps):
            until = time.monotonic() + READ_REST_S
            while pump.is_alive() and time.monotonic() < until:
                pump.join(shim.LOOK_S)
                if number in self._passing_on and is_read():
                    until = time.monotonic() + READ_REST_S
        os.close(self.reports)
        return Ending(self._status, self._killed)

    def _reap_strangers(self) -> None:
        """Reap processes that have become ours: as the first of a container we inherit those that nobody else has started."""
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self._shim.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    # -- output --------------------------------------------------------------------------------------

    def _pump(self, number: int, channel: Channel) -> None:
        is_wanted = self._is_shown
        try:
            while data := channel.read(MOST_AT_ONCE):
                if is_wanted:
                    self._passing_on.add(number)
                    is_wanted = channel.pass_on(data)
                    self._passing_on.discard(number)
                self._watch(number, data)
        finally:
            os.close(channel.outer)

    # -- orders and reports --------------------------------------------------------------------------

    def _order(self, line: str) -> None:
        try:
            os.write(self._orders, f"{line}\n".encode())
        except OSError as error:
            if error.errno != errno.EPIPE:  # it is over already
                raise

    def _take(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            if word == "started":
                self._pid = int(value)
            elif word == "failed":
                self._failure = os.strerror(int(value))
            elif word == "ended":
                self._status = os.waitstatus_to_exitcode(int(value))
            elif word == "killed":
                self._killed = int(value)

    def _wait_for_start(self, program: str) -> None:
        """Wait until the program runs, which takes some milliseconds."""
        os.set_blocking(self.reports, True)
        while self._pid is None and (data := os.read(self.reports, 4096)):
            self._take(data)
        os.set_blocking(self.reports, False)
        if self._pid is not None:
            return
        for end in (self._orders, self.reports, *(channel.outer for channel in self._channels)):
            os.close(end)
        self._shim.wait()
        raise ConfigError(f"{program}: cannot be started ({self._failure}); check the command behind --")


def _kill_what_is_left() -> int:
    """Kill the processes that have become ours, and theirs, until there are none; return how many there were."""
    killed: set[int] = set()
    while left := [pid for pid in shim.descendants(os.getpid()) if _session(pid) != os.getsid(0)]:
        for pid in left:
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(shim.LOOK_S)
    return len(killed)


def _session(pid: int) -> int:
    """Return the session of a process; what shares ours is a helper of this process, not the command's."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return os.getsid(0)
