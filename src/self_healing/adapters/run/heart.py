"""Writes the heartbeat of a training, from what its account of time knows anyway.

The thread that trains does nothing for it: whenever a step ends, or something else begins or ends, the account looks at
its clock. A thread of ours looks at the account and writes a small file when that has moved. So a thread that
trains and hangs is seen to hang, a disk that is slow or full holds nothing up, and no device is asked.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...core.goodput import Spending, TimeAccount
from ...core.heartbeat import Doing, Heartbeat, folder_for, remove_leftovers, write_heartbeat
from ...core.run_directory import launch_of

EVERY_S = 1.0
"""How often the first process of a machine writes at most."""
OTHERS_EVERY_S = 10.0
"""How often the others do: a thousand of them share one file system, and are looked at when something has happened."""
PATIENCE_S = 2.0
"""How long the end of a training waits for a disk that does not answer."""
LEFT_BEHIND_S = 60.0
_DOING = {
    Spending.START_UP: Doing.START_UP,
    Spending.RESTORING: Doing.RESTORING,
    Spending.SAVING: Doing.SAVING,
    Spending.EVALUATING: Doing.EVALUATION,
    Spending.STALLED: Doing.WAITING,
    Spending.OTHER: Doing.ENDING,
}
"""Everything else is part of a step."""


class Heart:
    """Tells whoever looks from outside that a training gets on."""

    def __init__(
        self, args: Any, account: TimeAccount, step: Callable[[], int], *, heals: bool, clock: Callable[[], float]
    ) -> None:
        """Take what is to be told of.

        Args:
            args: The arguments of the training.
            account: Kept by the thread that trains.
            step: Returns the global step.
            heals: Whether the healer acts in this process.
            clock: The clock of the account.

        """
        self._args = args
        self._account = account
        self._step = step
        self._heals = heals
        self._clock = clock
        self._ended: tuple[str, int | None] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: object = None
        self._has_failed = False

    def begin(self, attempt: int, on_trouble: Callable[[str], None], environ: Mapping[str, str] | None = None) -> None:
        """Write from now on; the first that cannot be written is told, and no other."""
        args, environ = self._args, os.environ if environ is None else environ
        self._folder = folder_for(environ, args.output_dir)
        self._on_trouble = on_trouble
        now = time.time()
        self._said = Heartbeat(
            pid=os.getpid(), host=platform.node(), rank=int(args.process_index), attempt=attempt, started_s=now, time_s=now,
            step=0, phase=Doing.START_UP, heals=self._heals, run_dir=os.path.realpath(args.output_dir),
            launch=launch_of(environ),
        )  # fmt: skip
        is_first = int(getattr(args, "local_process_index", 0)) == 0
        every_s = EVERY_S if is_first else OTHERS_EVERY_S
        self._thread = threading.Thread(target=self._beat, args=(every_s,), name="self-healing-heartbeat", daemon=True)
        self._thread.start()

    def ends(self, reason: str, exit_code: int | None) -> None:
        """Take note of how the training ended, which is written by `stop`."""
        self._ended = (reason, exit_code)

    def stop(self) -> None:
        """Write how it ended; hold on to nobody any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_over.set()
            thread.join(PATIENCE_S)
        step = self._step()
        self._step, self._on_trouble = lambda: step, _nobody_listens

    def _beat(self, every_s: float) -> None:
        remove_leftovers(self._folder, self._said.rank, older_than_s=time.time() - LEFT_BEHIND_S)
        self._tell()
        while not self._is_over.wait(every_s):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        """Write where the training has got to, if that is anywhere new."""
        account, step, ended = self._account, self._step(), self._ended
        kind, moved_s = account.spends_on, account.settled_s
        now_s = self._clock()
        if kind is Spending.STALLED:  # a pause of ours ends by itself
            moved_s = now_s
        phase = _DOING.get(kind, Doing.STEP)
        if phase is Doing.STEP and not account.has_done_a_step:
            phase = Doing.START_UP
        told = (step, phase, moved_s, ended)
        if told == self._told:
            return
        reason, code = ended or (None, None)
        self._said = replace(
            self._said,
            time_s=round(time.time() - (now_s - moved_s), 3),
            step=step,
            phase=phase,
            ended=reason,
            exit_code=code,
        )
        try:
            write_heartbeat(self._folder, self._said)
            self._told = told
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                self._on_trouble(f"the heartbeat cannot be written to {self._folder}: {error.strerror or error}")


def _nobody_listens(_text: str) -> None:
    """Stand for a ledger that is closed."""
