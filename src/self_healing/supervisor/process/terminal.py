"""What a command writes to: a terminal of its own where ours is one, so that progress bars live, else a pipe."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import termios
from dataclasses import dataclass

_OUTPUT_FLAGS = 1
"""Where `tcgetattr` has the flags of output processing."""


@dataclass(frozen=True)
class Channel:
    """One way out of a command: standard output, standard error, or both."""

    own: int
    """Our descriptor of the same name, which everything is passed on to."""
    outer: int
    """Where we read."""
    inner: int
    """Where the command writes."""
    is_terminal: bool

    def read(self, most: int) -> bytes:
        """Return what was written; nothing where nobody can write any more."""
        try:
            return os.read(self.outer, most)
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal ends
                return b""
            raise

    def pass_on(self, data: bytes) -> bool:
        """Write what the command wrote; say whether anybody wants more of it."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.own, view) :]
            except BlockingIOError:  # somebody else has made our output so
                _wait_until_writable(self.own)
            except OSError:  # closed, or nobody reads: the command goes on all the same
                return False
        return True

    def resize(self) -> None:
        """Give the command's terminal the size of ours."""
        if self.is_terminal:
            _copy_size(self.own, self.outer)


def open_channels() -> list[Channel]:
    """Make the ways out for standard output and standard error: one for both where ours lead to one place, to keep their order."""
    return [open_channel(1)] if _lead_to_one_place(1, 2) else [open_channel(1), open_channel(2)]


def open_silent_channel() -> Channel:
    """Make one way out for both streams of a command whose output is only watched."""
    outer, inner = os.pipe()
    return Channel(-1, outer, inner, is_terminal=False)


def _lead_to_one_place(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:  # one of them is closed
        return False


def open_channel(own: int) -> Channel:
    """Make a way out for a command, of the kind of one of ours."""
    if not is_terminal(own):
        outer, inner = os.pipe()
        return Channel(own, outer, inner, is_terminal=False)
    outer, inner = pty.openpty()
    modes = termios.tcgetattr(inner)
    modes[
        _OUTPUT_FLAGS
    ] &= ~termios.OPOST  # every byte as it was written: line feeds are made up for by our own terminal
    termios.tcsetattr(inner, termios.TCSANOW, modes)
    _copy_size(own, outer)
    return Channel(own, outer, inner, is_terminal=True)


def is_terminal(descriptor: int) -> bool:
    """Say whether a descriptor of ours is a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _copy_size(source: int, target: int) -> None:
    try:
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
    except OSError:  # a terminal without a size
        return


def _wait_until_writable(descriptor: int) -> None:
    import select  # noqa: PLC0415  # hardly ever

    select.select([], [descriptor], [])
