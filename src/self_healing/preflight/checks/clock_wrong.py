"""The check `clock-wrong`: the clock of this machine is set."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..surroundings.here import output_folder, runs_here
from ..tools import Tools

EARLIEST_S = 1_704_067_200.0
"""2024 began then; this was written later."""
SLACK_S = 86_400.0
MOST_FILES = 1000


class ClockWrong(Check):
    """The clock of this machine is set.

    With a clock that is years behind no certificate is valid (`CERTIFICATE_VERIFY_FAILED: certificate is not yet valid`), the Hub
    and trackers refuse the run, and the newest checkpoint is not the one with the latest date.
    """

    passes = (Example("python -m sft --output_dir out", "command"),)
    fails = (Example("python -m sft --output_dir out", "command", machine={"now_s": 86_400.0}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the year, and for files that are from the future."""
        if not runs_here(subject, tools):
            return
        now = tools.machine.now_s
        fix = "Set the clock: sudo timedatectl set-ntp true, or sudo date -s '2030-01-31 12:00' with the right date"
        if now < EARLIEST_S:
            yield self.error(
                Place("environment", key="clock"), f"the clock of this machine says {time.strftime('%Y-%m-%d', time.gmtime(now))}", fix
            )  # fmt: skip
            return
        folder = output_folder(subject, tools)
        if folder is None or not folder[0].is_dir():
            return
        for _, each in zip(range(MOST_FILES), folder[0].iterdir(), strict=False):
            ahead_s = each.lstat().st_mtime - now
            if ahead_s > SLACK_S:
                yield self.warning(
                    folder[1], f"{each} was written {ahead_s / 86_400:.0f} days after what the clock says is now", fix
                )
                return
