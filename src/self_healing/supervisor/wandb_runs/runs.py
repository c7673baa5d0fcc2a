"""Which W&B runs the attempts of a job have begun, which one is gone on with, and which may be deleted."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .asking import LIMIT_S, Question, ask
from .folders import Folders, RunFolder, is_under, look
from .lines import Address, read_line
from .record import recorded_place

MOST_RUNS = 64
"""Runs of one attempt that are remembered; where there are more, nothing is deleted."""
_NOT_ONLINE = ("offline", "dryrun", "disabled")
_IDS_IN_ADDRESSES = re.compile(r"/runs/([A-Za-z0-9_.-]{1,128})")


@dataclass(eq=False)
class _Attempt:
    """What is known of one attempt."""

    number: int
    cwd: Path
    environ: Mapping[str, str]
    command: Sequence[str]
    is_resumed: bool
    began_s: float
    before: Folders
    said: dict[str, set[Address]] = field(default_factory=dict)
    """The runs that wandb has spoken of in the output, and where it said they are."""
    mentioned: set[str] = field(default_factory=set)
    """Runs of earlier attempts that stand anywhere in the output."""
    has_old_run: bool = False
    has_too_many: bool = False
    is_over: bool = False
    folders: frozenset[RunFolder] = frozenset()
    """Those that have appeared in it."""

    def uses(self, run_id: str) -> bool:
        """Say whether anything speaks for this attempt having used a run."""
        return run_id in self.said or run_id in self.mentioned or any(f.run_id == run_id for f in self.folders)

    def own_runs(self) -> list[str]:
        """Return the runs that wandb has spoken of and that have a new folder, wherever that is."""
        with_folder = {folder.run_id for folder in self.folders}
        return [run_id for run_id in self.said if run_id in with_folder]


class WandbRuns:
    """The W&B runs of a job: `attempt_begins`, `see` each line, `attempt_ended`, `environ_for_next`, and so on to the end."""

    def __init__(self, *, may_delete: bool = True, limit_s: float = LIMIT_S) -> None:
        """Begin a job; `may_delete` is off with `--no-delete-wandb-runs`."""
        self._may_delete = may_delete
        self._limit_s = limit_s
        self._attempts: list[_Attempt] = []
        self._set_by_us: set[str] = set()
        self._known: frozenset[str] = frozenset()
        self._next_is_resumed = False

    def attempt_begins(self, attempt: int, cwd: Path, environ: Mapping[str, str], command: Sequence[str] = ()) -> None:
        """Remember what is there before an attempt; to be called before its process is started, with what that is given."""
        self._close()
        self._known = frozenset(run_id for past in self._attempts for run_id in past.said)
        is_resumed, self._next_is_resumed = self._next_is_resumed, False
        cwd = cwd.absolute()
        # The clock is read last: what takes long in here must not make an older run look new.
        before = look(cwd, environ)
        began_s = time.time()
        self._attempts.append(_Attempt(attempt, cwd, dict(environ), tuple(command), is_resumed, began_s, before))

    def see(self, line: str) -> str | None:
        """Take a cleaned line of the output; return the id of a run that is spoken of for the first time in this attempt."""
        is_wandb = "wandb:" in line
        if not self._attempts or not (is_wandb or (self._known and "/runs/" in line)):
            return None
        attempt = self._attempts[-1]
        attempt.mentioned.update(self._known.intersection(_IDS_IN_ADDRESSES.findall(line)))
        said = read_line(line) if is_wandb else None
        if said is None:
            return None
        attempt.has_old_run |= said.is_old
        if said.run_id is None:
            return None
        is_new = said.run_id not in attempt.said
        if is_new and len(attempt.said) >= MOST_RUNS:
            attempt.has_too_many = True
            return None
        addresses = attempt.said.setdefault(said.run_id, set())
        if said.address is not None and len(addresses) < 2:  # two that differ are as bad as more
            addresses.add(said.address)
        return said.run_id if is_new else None

    def attempt_ended(self, *, resumed: bool = False) -> None:
        """Look at what an attempt has left; `resumed`: it turned out to have gone on from an earlier one. In doubt say so."""
        if self._attempts:
            self._attempts[-1].is_resumed |= resumed
        self._close()

    def environ_for_next(self, is_resumed: bool) -> dict[str, str]:
        """Return what the next attempt needs on top of the user's own environment, and remember whether it is to resume."""
        self._close()
        self._next_is_resumed = is_resumed
        if not is_resumed or not self._attempts:
            return {}
        own = self._attempts[0].environ  # later ones may hold what was set by us
        resume = own.get("WANDB_RESUME")
        if resume == "never" or own.get("WANDB_MODE") == "disabled":
            return {}
        allowed = {} if resume else {"WANDB_RESUME": "allow"}
        if own.get("WANDB_RUN_ID"):
            return allowed
        run_id = self._run_to_continue()
        if run_id is None:
            return {}
        self._set_by_us.add(run_id)
        return {"WANDB_RUN_ID": run_id, **allowed}

    def delete_started_over(self, succeeded: bool) -> list[str]:
        """Delete the runs of attempts that were started over, if the last attempt has succeeded; return a line for each.

        Never raises: what fails is a line.
        """
        self._close()
        lines: list[str] = []
        questions: list[tuple[_Attempt, Question]] = []
        for attempt in self._attempts[:-1] if succeeded else self._attempts:
            for run_id in attempt.said:
                found = self._judged(attempt, run_id) if succeeded else "the job has not succeeded"
                if isinstance(found, str):
                    lines.append(_kept(run_id, attempt, found))
                else:
                    questions.append((attempt, found))
        if questions:
            asked = [question for _, question in questions]
            first = questions[0][0]
            for (attempt, question), answer in zip(
                questions, ask(asked, first.cwd, first.environ, self._limit_s), strict=True
            ):
                if answer.is_deleted:
                    where = f"{answer.text}, attempt {attempt.number}; its local files are kept"
                    lines.append(f"Deleted failed wandb run: {question.run_id} ({where})")
                else:
                    lines.append(_kept(question.run_id, attempt, answer.text))
        return lines

    def _close(self) -> None:
        """Note which folders have appeared in the attempt that is over."""
        if self._attempts and not self._attempts[-1].is_over:
            attempt = self._attempts[-1]
            attempt.is_over = True
            attempt.folders = look(attempt.cwd, attempt.environ).new_since(attempt.before)

    def _history(self, attempt: _Attempt) -> list[_Attempt]:
        """Return the attempts that a resumed one goes on from: back to the last that was begun anew."""
        found: list[_Attempt] = []
        for earlier in reversed(self._attempts[: self._attempts.index(attempt)]):
            found.append(earlier)
            if not earlier.is_resumed:
                break
        return found

    def _run_to_continue(self) -> str | None:
        """Return the run of the newest attempt of the history that has one; none where it has several."""
        last = self._attempts[-1]
        for attempt in [last, *(self._history(last) if last.is_resumed else [])]:
            own = attempt.own_runs()
            if own:
                return own[0] if len(own) == 1 and not attempt.has_too_many else None
        return None

    def _judged(self, attempt: _Attempt, run_id: str) -> Question | str:
        """Return what the service is to be asked, or why a run is kept without asking it."""
        reason = self._reason_to_keep(attempt, run_id)
        if reason is not None:
            return reason
        addresses = attempt.said[run_id]
        if len(addresses) > 1:
            return "the output names it at several addresses"
        address = next(iter(addresses), None)
        project = address.project if address is not None else attempt.environ.get("WANDB_PROJECT")
        entity = address.entity if address is not None else attempt.environ.get("WANDB_ENTITY")
        if not project:
            return "its project is not known: no address was printed, and WANDB_PROJECT is not set"
        for folder in attempt.folders:
            recorded = recorded_place(folder) if folder.run_id == run_id else None
            if recorded is not None and not recorded.fits(entity, project):
                return f"its own files name another place ({recorded})"
        return Question(
            run_id=run_id,
            entity=entity or None,
            project=project,
            site=None if address is None else address.site,
            not_before_s=attempt.began_s,
        )

    def _reason_to_keep(self, attempt: _Attempt, run_id: str) -> str | None:
        """Return what is known here that speaks against deleting a run."""
        if not self._may_delete:
            return "--no-delete-wandb-runs"
        resumed = next((a for a in self._attempts if a.is_resumed and attempt in self._history(a)), None)
        if resumed is not None:
            return f"attempt {resumed.number} went on from it"
        if run_id in self._set_by_us or _is_given(run_id, attempt):
            return "its id was given, by WANDB_RUN_ID or otherwise"
        other = next((a for a in self._attempts if a is not attempt and a.uses(run_id)), None)
        if other is not None:
            return f"attempt {other.number} used it too"
        if attempt.environ.get("WANDB_MODE") in _NOT_ONLINE:
            return f"WANDB_MODE is {attempt.environ['WANDB_MODE']}"
        if attempt.has_old_run:
            return "the attempt resumed a run that was there before"
        if any(each.has_too_many for each in self._attempts):
            return f"an attempt spoke of more than {MOST_RUNS} runs"
        mine = [folder for folder in attempt.folders if folder.run_id == run_id]
        if any(folder.is_offline for folder in mine):
            return "it is offline, and only here"
        if not any(is_under(folder, attempt.cwd) for folder in mine):
            return f"no folder wandb/run-*-{run_id} appeared under {attempt.cwd} in that attempt"
        return None


def _is_given(run_id: str, attempt: _Attempt) -> bool:
    """Say whether an id stands in the command or the environment of an attempt, and so was somebody's choice."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(run_id)}(?![A-Za-z0-9])")
    return any(word.search(text) for text in (*attempt.environ.values(), *attempt.command))


def _kept(run_id: str, attempt: _Attempt, reason: str) -> str:
    return f"Kept wandb run {run_id} of attempt {attempt.number}: {reason}"
