"""A tiny process between the supervisor and the command: whatever becomes of the supervisor, nothing is left behind.

    python -I -S shim.py ORDERS_FD REPORTS_FD GRACE_S PROGRAM [ARGUMENT...]

It runs as a program of its own and imports nothing but the standard library. Orders come as lines on one pipe, reports go
out as lines on another:

    signal N      send a signal to the command                        started PID
    end SECONDS   ask everything to end, kill it after so long        failed ERRNO     the program cannot be started
    pause, go on  stop everything, and let it go on
    kill          kill everything now                                 ended STATUS     as wait() gives it
    remove PATH   a file or folder (in hex) to remove if the supervisor dies
                                                                      left PID STATE   what could not be killed
                                                                      killed COUNT     of those that had to be, then it ends
When the supervisor dies the pipe of orders closes, which is an order to end. A parent-death signal would reach the command
alone. As subreaper the shim inherits what the command leaves behind, so that all of it can be found and ended.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time

SET_PARENT_DEATH_SIGNAL = 1
SET_CHILD_SUBREAPER = 36
LINGER_S = 0.5
"""How long helpers of a command that has ended may take to end by themselves."""
LOOK_S = 0.05
UNKILLABLE_S = 10.0
"""How long a killed process may take to be gone: one that waits in the kernel for a disk that is away never is."""
DENIED = "denied"
"""In the place of its state: it belongs to another user, and goes on."""
DEADLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are for the command, and reach it by way of the supervisor."""
FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH})
"""What a terminal sends to a whole process group. All else is for the command alone, which may need its helpers to save."""
NOT_FOUND = 127
_ENDED = ("Z", "X")
"""States of those who wait to be reaped."""
_STOPPED = ("T", "t")


class Shim:
    """One command, from its start until nothing of it is left."""

    def __init__(self, orders: int, reports: int, grace_s: float, argv: list[str]) -> None:
        self.orders = orders
        self.reports = reports
        self.grace_s = grace_s
        self.argv = argv
        self.command = 0
        self.has_ended = False
        self.kill_at: float | None = None
        self.give_up_at: float | None = None
        self.killed: set[int] = set()
        self.paused: set[int] = set()
        self.unread = b""
        self.to_remove: list[bytes] = []
        self.given_to_command: tuple[signal.Signals, ...] = DEADLY
        """Signals that do to the command what they do to any; what was ignored before us stays so."""

    def run(self) -> None:
        """Start the command, obey orders until it has ended, and leave nothing behind."""
        outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        self.given_to_command = tuple(each for each in DEADLY if not (outlives_terminal and each == signal.SIGHUP))
        for each in DEADLY:
            signal.signal(each, signal.SIG_IGN)
        become_subreaper()
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        if self._start():
            self._watch(woken)
        if self.orders < 0:
            self._remove_files()
        self._report(f"killed {len(self.killed)}")

    def _start(self) -> bool:
        """Start the command in a session of its own; say whether it runs."""
        failed, failure = os.pipe()  # both close when the program is executed
        self.command = os.fork()
        if self.command == 0:
            try:
                self._become_command()
            except OSError as error:
                os.write(failure, str(error.errno).encode())
            finally:
                os._exit(NOT_FOUND)
        os.close(failure)
        problem = os.read(failed, 16)
        os.close(failed)
        self._let_go_of_output()
        if problem:
            os.waitpid(self.command, 0)
            self._report(f"failed {problem.decode()}")
            return False
        self._report(f"started {self.command}")
        return True

    def _become_command(self) -> None:
        os.setsid()
        _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # for the case that supervisor and shim are killed at once
        for each in (*self.given_to_command, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(each, signal.SIG_DFL)
        os.execvp(self.argv[0], self.argv)  # noqa: S606  # that is what it is for

    def _let_go_of_output(self) -> None:
        """Close what was the command's to write to: the supervisor reads its end when the command has closed it too."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.close(nothing)

    def _watch(self, woken: int) -> None:
        """Obey, reap and clean up until the command and all that came of it are gone."""
        lingers_until: float | None = None
        while True:
            self._reap()
            rest = descendants(os.getpid())
            now = time.monotonic()
            if self.has_ended:
                if not rest:
                    return
                lingers_until = lingers_until or now + LINGER_S
                if self.kill_at is None and now >= lingers_until:
                    self._end(rest, self.grace_s)
            if self.kill_at is not None and now >= self.kill_at:
                self._kill(rest)
                self.give_up_at = self.give_up_at or now + UNKILLABLE_S
                if now >= self.give_up_at:
                    for pid, state in survivors(rest):
                        self._report(f"left {pid} {state}")
                    return
            # Whoever waits for nothing but the command is woken by it; who counts time looks now and then.
            is_timed = self.has_ended or self.kill_at is not None
            self._listen(woken, LOOK_S if is_timed else None)

    def _listen(self, woken: int, seconds: float | None) -> None:
        sources = [woken] if self.orders < 0 else [woken, self.orders]
        ready, _, _ = select.select(sources, [], [], seconds)
        if woken in ready:
            _emptied(woken)
        if self.orders in ready:
            self._obey()

    def _obey(self) -> None:
        data = os.read(self.orders, 4096)
        if not data:  # the supervisor is gone
            os.close(self.orders)
            self.orders = -1
            self._end(descendants(os.getpid()), self.grace_s)
            return
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            if word == "signal":
                self._signal(int(value))
            elif word == "end":
                self._end(descendants(os.getpid()), float(value))
            elif word == "pause":
                self._pause()
            elif word == "go":
                self._go_on()
            elif word == "kill":
                self.kill_at = time.monotonic()
            elif word == "remove":
                self.to_remove.append(bytes.fromhex(value))

    def _signal(self, number: int) -> None:
        if not self.has_ended:
            (_sent_to_group if number in FROM_TERMINAL else _sent)(self.command, number)

    def _pause(self) -> None:
        """Stop everything. SIGTSTP would not do: it stops nobody whose parent is in another session."""
        while running := set(descendants(os.getpid(), but_not=(*_ENDED, *_STOPPED))) - self.paused:
            for pid in running:
                _sent(pid, signal.SIGSTOP)
            self.paused |= running

    def _go_on(self) -> None:
        for pid in self.paused:
            _sent(pid, signal.SIGCONT)
        self.paused.clear()

    def _end(self, processes: list[int], seconds: float) -> None:
        """Ask the command to end, or what it has left behind; an earlier order to kill stays."""
        at = time.monotonic() + seconds
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)
        for pid in processes if self.has_ended else [self.command]:
            _sent(pid, signal.SIGTERM)
        for pid in processes:
            _sent(pid, signal.SIGCONT)  # what is stopped hears nothing else

    def _kill(self, processes: list[int]) -> None:
        for pid in processes:
            if _sent(pid, signal.SIGKILL):
                self.killed.add(pid)

    def _remove_files(self) -> None:
        """Do what the supervisor would have done at its end."""
        for path in self.to_remove:
            try:
                os.unlink(path)
            except IsADirectoryError:
                shutil.rmtree(path, ignore_errors=True)
            except OSError:  # gone already, or not to be removed
                continue

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.command:
                self.has_ended = True
                self._report(f"ended {status}")

    def _report(self, line: str) -> None:
        try:
            os.write(self.reports, f"{line}\n".encode())
        except OSError as error:
            if error.errno != errno.EPIPE:  # nobody listens any more
                raise


def descendants(ancestor: int, but_not: tuple[str, ...] = _ENDED) -> list[int]:
    """Return all processes that come of one, without those that have ended and wait to be reaped, or are in another state."""
    children: dict[int, list[int]] = {}
    left_out: set[int] = set()
    for pid, parent, state in _processes():
        children.setdefault(parent, []).append(pid)
        if state in but_not:
            left_out.add(pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [pid for pid in found if pid not in left_out]


def survivors(killed: list[int]) -> list[tuple[int, str]]:
    """Return those of the processes that are still there after SIGKILL, and the state of each."""
    states = {pid: state for pid, _, state in _processes() if state not in _ENDED}
    return [(pid, DENIED if _is_denied(pid) else states[pid]) for pid in killed if pid in states]


def _is_denied(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def _processes() -> list[tuple[int, int, str]]:
    """Return every process with its parent and the letter of its state."""
    if not os.path.isdir("/proc/self"):
        with subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:  # noqa: S607
            rows = [line.split() for line in ps.communicate()[0].splitlines()]
        return [(int(pid), int(parent), state[0]) for pid, parent, state in rows if int(pid) != ps.pid]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        except OSError:  # it has just ended
            continue
        found.append((int(name), int(fields[1]), fields[0].decode()))
    return found


def _sent(pid: int, number: int) -> bool:
    """Send a signal; say whether there was somebody to receive it."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _sent_to_group(group: int, number: int) -> bool:
    return _sent(-group, number)


def become_subreaper() -> None:
    """Have processes that lose their parent become this one's children, so that they can be found."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _emptied(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def main() -> None:
    """Run as the program of this process."""
    orders, reports = int(sys.argv[1]), int(sys.argv[2])
    for each in (orders, reports):
        os.set_inheritable(each, False)
    Shim(orders, reports, float(sys.argv[3]), sys.argv[4:]).run()


if __name__ == "__main__":
    main()
