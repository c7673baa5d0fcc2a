"""The supervising loop: attempt, decide, change, attempt again, clean up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..core.errors import ConfigError, Preempted
from ..core.notes import ENDED
from ..core.run_directory import lock_run_directory
from ..core.run_ledgers import DECIDED, OVER
from .attempting import Attempts, Job, put_away
from .decide import Again, Decision, Done, Stop, Wish, as_recorded, decide
from .last_words import exit_reason, write_last_words
from .outcome import EndedBy, Outcome, as_note
from .process.shim import become_subreaper
from .recipe import NoRoom, Recipe, read_recipe
from .settings import RunSettings
from .signals import SignalDesk, ToldToEnd
from .slurm import JOB_ID, requeued
from .telling import LOG, Teller, table

FAILED = 1
MOST_AT_ONCE = 1000
"""Jobs that may begin in one folder in one second."""


def supervise(settings: RunSettings, cwd: Path, environ: Mapping[str, str], show: Callable[[str], None]) -> int:
    """Run a command until it succeeds or cannot, and return the exit code.

    Raises:
        ConfigError: something is wrong with what the user gave; nothing was started or changed.

    """
    recipe = read_recipe(settings, cwd)
    run_dir = run_directory(settings, recipe, cwd)
    become_subreaper()
    if settings.run_dir is None and recipe.output_folder() is None:
        run_dir = _new_directory(run_dir)
    check_run_directory(run_dir)
    job = Job(settings=settings, cwd=cwd, run_dir=run_dir, environ=environ)
    with lock_run_directory(run_dir, name="supervisor"), SignalDesk() as desk:
        teller = _teller(run_dir, show, environ)
        supervisor = Supervisor(job, recipe, desk, teller)
        try:
            return supervisor.run()
        finally:
            supervisor.clean_up()
            teller.close()


def _teller(run_dir: Path, show: Callable[[str], None], environ: Mapping[str, str]) -> Teller:
    try:
        return Teller(run_dir, show, environ)
    except OSError as error:
        raise ConfigError(
            f"{run_dir / LOG}: cannot be written ({error.strerror}); remove it, or name another run directory by --run-dir"
        ) from error


def run_directory(settings: RunSettings, recipe: Recipe, cwd: Path) -> Path:
    """Return the run directory: the user's, the command's own output folder, or a new one."""
    if settings.run_dir is not None:
        return cwd / settings.run_dir
    return recipe.output_folder() or cwd / "heal-runs" / time.strftime("%Y%m%d-%H%M%S")


def _new_directory(wanted: Path) -> Path:
    """Make a folder that nobody else has: several jobs may be started in the same second."""
    for number in range(1, MOST_AT_ONCE + 1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # which whoever looks at the folder next tells of
            return wanted
        return path
    return wanted


class Supervisor:
    """One job and its attempts."""

    def __init__(self, job: Job, recipe: Recipe, desk: SignalDesk, teller: Teller) -> None:
        self._settings = job.settings
        self._environ = job.environ
        self._began_s = time.time()
        self._run_dir = job.run_dir
        self._recipe = recipe
        self._attempts = Attempts(job, desk, teller)
        self._desk = desk
        self._teller = teller
        self._story: list[Outcome] = []

    def run(self) -> int:
        """Attempt until it is done or cannot be; return the exit code."""
        self._begin()
        changes: tuple[str, ...] = ()
        while True:
            try:
                outcome = self._attempt(changes)
            except (ConfigError, OSError) as error:  # it could be started before: how it ended then is what counts
                if not self._story:
                    raise
                return self._end(Stop(f"the command cannot be started again: {error}"))
            self._story.append(outcome)
            decision, changes = self._decide(outcome)
            if not isinstance(decision, Again):
                return self._end(decision)
            with suppress(ToldToEnd), self._desk.giving_up():  # which is seen next
                self._recipe = self._attempts.to_go_on(self._recipe, outcome)
            if not self._wait(decision.wait_s):
                return self._end(Stop("told to end while waiting for the next attempt"))

    def clean_up(self) -> None:
        """Remove what was written for retries."""
        self._attempts.clean_up()
        for problem in self._recipe.clean_up():
            self._teller.say(problem, "WARNING")

    # -- one attempt ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        settings = self._settings
        for problem in put_away(self._run_dir):
            self._teller.say(problem, "WARNING")
        self._teller.say(f"run directory {self._run_dir}, log {self._run_dir / LOG}")
        for line in self._recipe.describe():
            self._teller.note(line)
        self._teller.note(
            f"Max retries: {settings.max_retries}, min learning rate: {settings.min_lr:.2e}, min batch size: {settings.min_batch_size}"
        )

    def _attempt(self, changes: tuple[str, ...]) -> Outcome:
        number = len(self._story) + 1
        self._teller.say(f"attempt {number} of at most {self._settings.max_retries + 1}")
        outcome = self._attempts.run(self._recipe, number, changes)
        self._tell_outcome(outcome)
        return outcome

    def _tell_outcome(self, outcome: Outcome) -> None:
        attempt = outcome.attempt
        self._teller.record(OVER, as_note(outcome), step=attempt.step or 0)
        if outcome.succeeded:
            self._teller.say(f"attempt {attempt.number} has finished")
            return
        self._teller.record_failure(outcome)
        self._teller.say(f"attempt {attempt.number} failed: {outcome.fine}: {outcome.says}", "WARNING")
        for line in outcome.evidence:
            self._teller.note(f"  {line}")

    # -- between two ---------------------------------------------------------------------------------

    def _decide(self, outcome: Outcome) -> tuple[Decision, tuple[str, ...]]:
        """Return what follows, and what was changed for it, in words."""
        before = self._recipe
        decision, no_room = decide(self._story, self._settings), ""
        if isinstance(decision, Again) and decision.wish is not Wish.NOTHING:
            no_room = self._change(decision.wish)
            decision = decide(self._story, self._settings, no_room) if no_room else decision
        if no_room and isinstance(decision, Again):
            self._teller.say(f"nothing is changed: {no_room}")
        changes = [change.text() for change in self._recipe.changes_since(before)]
        self._teller.record(
            DECIDED,
            {"attempt": outcome.attempt.number, **as_recorded(decision), "changes": changes, "no_room": no_room},
            step=outcome.attempt.step or 0,
        )
        return decision, tuple(changes)

    def _change(self, wish: Wish) -> str:
        """Change what is to be changed; return why it cannot be, where it cannot."""
        changed = self._changed(wish)
        if isinstance(changed, NoRoom):
            return changed.reason
        for change in changed.changes_since(self._recipe):
            self._teller.say(change.text())
        self._recipe = changed
        return ""

    def _changed(self, wish: Wish) -> Recipe | NoRoom:
        settings = self._settings
        if wish is Wish.LESS_RATE:
            return self._recipe.with_less_rate(settings.lr_divisor, settings.min_lr)
        if wish is Wish.LESS_BATCH:
            return self._recipe.with_less_batch(settings.batch_divisor, settings.min_batch_size)
        return self._recipe.with_fewer_workers()

    def _wait(self, seconds: float) -> bool:
        """Wait before the next attempt; say whether there is to be one."""
        if seconds > 0:
            self._teller.say(f"the next attempt begins in {seconds:g} s")
        until = time.monotonic() + seconds
        while True:
            taken = self._desk.taken()
            if signal.SIGUSR1 in taken:  # there is nothing that could save itself
                self._desk.told_to_end_by(signal.SIGUSR1)
            if signal.SIGUSR2 in taken:
                self._teller.say("SIGUSR2: there is no command now that it could be passed on to")
            if self._desk.asked_to_end is not None:
                return False
            rest = until - time.monotonic()
            if rest <= 0:
                return True
            self._desk.wait(rest)

    def _end(self, decision: Done | Stop) -> int:
        if isinstance(decision, Stop):
            self._teller.say(f"no further attempt: {decision.because}", "WARNING")
            for fix in self._story[-1].fixes[:3]:
                self._teller.say(f"  - {fix}")
        for line in table(self._story):
            self._teller.say(line)
        self._attempts.finish(succeeded=isinstance(decision, Done))
        code = 0 if isinstance(decision, Done) else self._exit_code()
        last = self._story[-1]
        reason = exit_reason(last, self._desk.asked_to_end)
        self._teller.record(ENDED, {"exit_reason": reason.value, "code": code}, step=last.attempt.step or 0)
        self._teller.flush()
        if not self._attempts.has_told:
            write_last_words(self._run_dir, last, reason, self._began_s, self._environ, home=self._attempts.home)
        if self._is_to_be_requeued():
            self._teller.say(requeued(self._environ))
        return code

    def _is_to_be_requeued(self) -> bool:
        """Say whether Slurm has warned of its end, and the command has saved itself."""
        is_saved = self._story[-1].attempt.status == Preempted.exit_code
        return is_saved and self._desk.asked_to_end == signal.SIGUSR1 and JOB_ID in self._environ

    def _exit_code(self) -> int:
        """Return the code of a job that failed: never 0."""
        last = self._story[-1].attempt
        asked = self._desk.asked_to_end
        if last.ended_by in (EndedBy.NAN, EndedBy.HANG) or last.status in (0, None):
            return FAILED
        assert last.status is not None
        if last.status >= 0:
            return last.status
        by_us = asked is not None and last.status == -signal.SIGKILL
        return 128 + (asked if by_us and asked is not None else -last.status)


def check_run_directory(run_dir: Path) -> None:
    """Refuse a run directory that cannot be written, before anything is started.

    Raises:
        ConfigError: it cannot be created or written to.

    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{run_dir}: cannot be made the run directory ({error.strerror}); name another by --run-dir"
        ) from error
    if not os.access(run_dir, os.W_OK | os.X_OK):
        raise ConfigError(f"{run_dir}: the run directory cannot be written to; name another by --run-dir")
