"""The attempts of a job: what each is started with, what stands beside it, and what it came to."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.heartbeat import Heartbeat, read_heartbeats
from ..core.run_directory import ATTEMPT, EARLIER, VARIABLE, healing_folder
from ..core.run_ledgers import BEGAN
from ..readers.log_text import Block
from ..report.postmortem import postmortem_path
from .checkpoints import newest_sound, written
from .decide import DECIDES_BY
from .launcher import Launcher, launcher_of
from .outcome import Outcome, outcome_of
from .process.terminal import is_terminal
from .recipe import NoRoom, Recipe, Role
from .running import Running, Start
from .settings import RunSettings
from .signals import SignalDesk
from .slower_checkpoint import NotMade, make_slower
from .telling import Teller
from .torchrun import RankFailure, SummaryReader, exports, first_failure, read_errors
from .wandb_runs import WandbRuns

COPIES = "slower"
"""The folder of an attempt in which the checkpoint lies that was changed for it."""
_ATTEMPT = re.compile(r"attempt-\d{1,9}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is supervised, as the user gave it."""

    settings: RunSettings
    cwd: Path
    run_dir: Path
    environ: Mapping[str, str]


class Attempts:
    """Starts the attempts of one job, one after the other."""

    def __init__(self, job: Job, desk: SignalDesk, teller: Teller) -> None:
        self._job = job
        self._desk = desk
        self._teller = teller
        self._wandb = WandbRuns(may_delete=job.settings.delete_wandb_runs)
        self.home: Path | None = None
        """The folder of the last training that our healer has looked after from inside."""
        self.has_told = False
        """Whether the last attempt has written a postmortem of its own."""
        self._more_environ: dict[str, str] = {}
        self._copies: list[Path] = []
        self._began: list[tuple[dict[Path, float], float | None]] = []
        """Which checkpoints there were when each attempt began, and its learning rate."""

    def run(self, recipe: Recipe, number: int, changes: tuple[str, ...]) -> Outcome:
        """Run one attempt to its end, and say what it came to."""
        launch = recipe.prepared(number)
        folder = healing_folder(self._job.run_dir) / f"attempt-{number}"
        argv, environ = list(launch.argv), self._environ_for(launch.environ, number)
        launcher = launcher_of(argv)
        if launcher is not None:
            argv = launcher.with_log_folder(argv, folder / "torchrun")
            environ |= exports(environ)
        self._teller.note("$ " + " ".join(argv))
        if launch.config is not None:
            self._teller.note(f"Using config: {launch.config}")
        self._teller.record_over()
        settings = self._job.settings.model_dump(mode="json", include=set(DECIDES_BY))
        self._teller.record(BEGAN, {"attempt": number, "argv": argv, "changes": list(changes), "settings": settings})
        self._wandb.attempt_begins(number, self._job.cwd, environ, argv)
        lines = _Lines(self._wandb, self._teller, is_launched=launcher is not None)
        beats, began_s = _Beats(self._job.run_dir, number), time.time()
        start = Start(
            number=number, argv=argv, environ=environ, cwd=self._job.cwd, folder=folder, temporary=(*recipe.files.paths, *self._copies), changes=changes, on_lines=lines.see,
            beats=beats.signs, phase=beats.phase, heals_itself=beats.heals, tell=self._teller.say,
        )  # fmt: skip
        self._began.append((written(self._folder_of(recipe)), _rate_of(recipe)))
        postmortem = postmortem_path(self._job.run_dir)
        before = _identity(postmortem)
        seen = Running(start, self._job.settings, self._desk).run()
        # One of a training that then died itself tells of the attempt before it.
        self.has_told = _identity(postmortem) != before and beats.are_over()
        recipe.clean_up()  # nobody is there to do it, should we be killed while we wait
        self.home = beats.home() or self.home
        since_s = (
            0.0 if str(folder / "torchrun") in argv else began_s
        )  # others may have written to a folder of the user's
        failure = None if launcher is None else self._first_failure(launcher, argv, environ, lines, since_s)
        self._wandb.attempt_ended(resumed=beats.heals())
        return outcome_of(replace(seen, step=beats.step(seen.step), own_code=beats.exit_code(), rank_failure=failure))

    def to_go_on(self, recipe: Recipe, last: Outcome) -> Recipe:
        """Return the recipe with what lets the next attempt go on from where the last one was, where that is possible."""
        is_resumed = last.attempt.heals_itself
        if not is_resumed:
            recipe, is_resumed = self._with_checkpoint(recipe, last)
        self._more_environ = self._wandb.environ_for_next(is_resumed)
        return recipe

    def finish(self, *, succeeded: bool) -> None:
        """Clean up behind the attempts that count for nothing."""
        for line in self._wandb.delete_started_over(succeeded):
            self._teller.say(line)

    def clean_up(self) -> None:
        """Remove the copies of checkpoints that were made for attempts."""
        for copy in self._copies:
            shutil.rmtree(copy, ignore_errors=True)

    def _with_checkpoint(self, recipe: Recipe, last: Outcome) -> tuple[Recipe, bool]:
        recipe = recipe.without_checkpoint()  # that of the last attempt: whoever starts over has none
        sound = newest_sound(self._folder_of(recipe), last.trouble_since_s, older=self._began[0][0])
        for why in sound.passed_over:
            self._teller.say(f"passed over: {why}")
        if sound.path is None:
            if recipe.resume_key is not None:
                hint = "" if recipe.output_folder() else "; --run-dir names the folder that the command saves to"
                folder = self._folder_of(recipe)
                self._teller.say(
                    f"the next attempt starts over: {folder} has no checkpoint of this job to go on from{hint}"
                )
            return recipe, False
        changed = recipe.with_checkpoint(sound.path)
        if isinstance(changed, NoRoom):
            self._teller.say(f"the next attempt starts over, though there is {sound.path}: {changed.reason}")
            return recipe, False
        factor = self._factor(recipe, sound.path)
        if factor is not None and factor != 1.0:  # it may also be older than the last change
            return self._with_slower_checkpoint(recipe, last, sound.path, factor)
        self._teller.say(f"the next attempt goes on from {sound.path}")
        return changed, True

    def _folder_of(self, recipe: Recipe) -> Path:
        """Return where the command puts its checkpoints."""
        return recipe.output_folder() or self._job.run_dir

    def _factor(self, recipe: Recipe, path: Path) -> float | None:
        """Return by how much the rate of the next attempt differs from that with which a checkpoint was written."""
        written_s = written(self._folder_of(recipe)).get(path)
        then = next((rate for there, rate in reversed(self._began) if there.get(path) != written_s), None)
        now = _rate_of(recipe)
        return None if then is None or now is None else now / then

    def _with_slower_checkpoint(self, recipe: Recipe, last: Outcome, path: Path, factor: float) -> tuple[Recipe, bool]:
        """Have the next attempt go on from a copy with its learning rate: in the checkpoint itself is the old one."""
        copy = healing_folder(self._job.run_dir) / f"attempt-{last.attempt.number + 1}" / COPIES / path.name
        self._copies.append(copy.parent)
        try:
            make_slower(path, copy, factor, recipe.argv)
        except NotMade as error:
            self._teller.say(
                f"the next attempt starts over: {path.name} would bring the old learning rate back, and cannot be changed ({error})"
            )
            return recipe, False
        changed = recipe.with_checkpoint(copy)
        assert isinstance(changed, Recipe)
        self._teller.say(f"the next attempt goes on from {path}, from a copy of it with the lower rate")
        return changed, True

    def _environ_for(self, changed: Mapping[str, str], number: int) -> dict[str, str]:
        environ = {**self._job.environ, **changed, **self._more_environ}
        environ |= {VARIABLE: str(self._job.run_dir.resolve()), ATTEMPT: str(number)}
        environ.setdefault("PYTHONFAULTHANDLER", "1")  # a crash, and our SIGABRT at a hang, show where python was
        if not is_terminal(1):  # also with errors on a terminal (`| tee log`): python keeps back what goes to a pipe
            environ.setdefault("PYTHONUNBUFFERED", "1")
        return environ

    def _first_failure(
        self, launcher: Launcher, argv: list[str], environ: Mapping[str, str], lines: _Lines, since_s: float
    ) -> RankFailure | None:
        folder = launcher.log_folder(argv, environ)
        errors = read_errors(self._job.cwd / folder, since_s) if folder is not None else []
        return first_failure(lines.summary.failures, errors)


def put_away(run_dir: Path) -> list[str]:
    """Put the attempts of the job before into a folder of their own, so that nobody takes them for this one's; say what went wrong."""
    healing = healing_folder(run_dir)
    problems = []
    try:
        found = [path for path in healing.iterdir() if _ATTEMPT.fullmatch(path.name)]
        if found:
            shutil.rmtree(healing / EARLIER, ignore_errors=True)
            (healing / EARLIER).mkdir(mode=0o700, exist_ok=True)
        for path in found:
            shutil.rmtree(path / COPIES, ignore_errors=True)  # its supervisor was killed before it could
            path.replace(healing / EARLIER / path.name)
    except OSError as error:
        problems.append(f"{healing}: attempts of an earlier job could not be put away ({error.strerror or error})")
    return problems


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from the one that takes its place; clocks may go back."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _rate_of(recipe: Recipe) -> float | None:
    rates = [setting.value for setting in recipe.settings(Role.RATE)]
    return float(rates[0]) if rates and isinstance(rates[0], float | int) else None


class _Beats:
    """What the trainings of one attempt say of themselves, if our healer runs in them."""

    def __init__(self, run_dir: Path, number: int) -> None:
        self._run_dir = run_dir
        self._number = number
        self._before = read_heartbeats(run_dir)

    def all(self) -> list[Heartbeat]:
        return [beat for beat in read_heartbeats(self._run_dir) if beat.is_new(self._before, self._number)]

    def are_over(self) -> bool:
        """Say whether every training has come to an end of its own, or there was none."""
        return all(beat.ended is not None for beat in self.all())

    def home(self) -> Path | None:
        return next((Path(beat.run_dir) for beat in self.all() if beat.rank == 0), None)

    def signs(self) -> object:
        return [(beat.rank, beat.time_s, beat.step, beat.phase) for beat in self.all()]

    def phase(self) -> str | None:
        return next((beat.phase.value for beat in self.all() if beat.ended is None), None)

    def heals(self) -> bool:
        return any(beat.heals for beat in self.all())

    def step(self, printed: int | None) -> int | None:
        steps = [beat.step for beat in self.all()]
        return max([*steps, *([] if printed is None else [printed])], default=None)

    def exit_code(self) -> int | None:
        return next((beat.exit_code for beat in self.all() if beat.exit_code is not None), None)


class _Lines:
    """Shows the lines of an attempt to those who look for something in them."""

    def __init__(self, wandb: WandbRuns, teller: Teller, *, is_launched: bool) -> None:
        self.summary = SummaryReader()
        self._wandb = wandb
        self._teller = teller
        self._is_launched = is_launched

    def see(self, block: Block) -> None:
        text = block.text
        if "wandb" in text or "/runs/" in text:
            for line in text.split("\n"):
                found = self._wandb.see(line)
                if found is not None:
                    self._teller.note(f"Detected wandb run ID: {found}")
        if self._is_launched:
            for line in text.split("\n"):
                self.summary.see(line)
