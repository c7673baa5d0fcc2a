"""The one place that imports wandb: a script that asks the service about runs, and deletes those it may.

It is started by `asking` with a folder as its argument, reads `questions` there and adds a line to `answers` for each. It
imports nothing of this package, so that it starts from anywhere.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_OVER = ("finished", "failed", "crashed", "killed")
"""What a run may be that is deleted; any other state (running, pending, preempted, one that is new) keeps it."""
_SAME_SITE = ("https://forge.coreweave.com/wandb", "https://wandb.ai")
"""As in `lines`, which cannot be imported here."""


def main() -> None:
    """Answer all questions of the folder."""
    folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asked = json.loads((folder / "questions").read_text("ascii"))
    with (folder / "answers").open("a", encoding="ascii", buffering=1) as answers:

        def tell(number: int, text: str, *, is_deleted: bool = False) -> None:
            answers.write(json.dumps({"n": number, "deleted": is_deleted, "text": text}) + "\n")

        _answer_all(asked["runs"], asked["answer_s"], tell)


def _end_with_parent() -> None:
    """End when the supervisor has ended, which closes the pipe."""
    os.read(sys.stdin.fileno(), 1)  # not by `sys.stdin`, whose lock would be held while the interpreter ends
    os._exit(1)


def _answer_all(runs: list[dict[str, Any]], answer_s: int, tell: Any) -> None:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        reason = f"wandb cannot be imported by {sys.executable} ({error}); delete it on its page"
        for number in range(len(runs)):
            tell(number, reason)
        return
    failure, api = "", None
    for number, run in enumerate(runs):
        if failure:  # the others would only wait for the same
            tell(number, failure)
            continue
        try:
            if api is None:
                api = wandb.Api(overrides=_given(run), timeout=answer_s)
            _answer(api, number, run, tell)
        except Exception as error:  # noqa: BLE001  # the fence: whatever wandb raises is the answer
            text = str(error).strip() or type(error).__name__
            if _is_missing(error):
                tell(number, f"the service knows no run {run['project']}/{run['run_id']}")
            else:
                failure = f"the service could not be asked ({type(error).__name__}: {text})"
                tell(number, failure)


def _given(asked: dict[str, Any]) -> dict[str, str]:
    """Return what saves the question who we are; runs are asked for by their full path all the same."""
    return {"project": asked["project"]} | ({"entity": asked["entity"]} if asked["entity"] else {})


def _answer(api: Any, number: int, asked: dict[str, Any], tell: Any) -> None:
    """Look at one run and delete it if nothing speaks against it."""
    entity = asked["entity"] or api.default_entity
    if not entity:
        tell(number, "whose run it is is not known; set WANDB_ENTITY")
        return
    run = api.run(f"{entity}/{asked['project']}/{asked['run_id']}")
    reason = reason_to_keep(run, entity, asked)
    if reason:
        tell(number, reason)
        return
    tell(number, "its deletion was asked for and not confirmed; look at its page")
    run.delete()
    tell(number, f"{entity}/{asked['project']}", is_deleted=True)


def reason_to_keep(run: Any, entity: str, asked: dict[str, Any]) -> str:
    """Return what speaks against deleting a run that the service has shown; nothing where nothing does."""
    wanted = (entity, asked["project"], asked["run_id"])
    if (run.entity, run.project, run.id) != wanted:  # a path that was read in another way
        return f"the service shows another run ({run.entity}/{run.project}/{run.id})"
    site = run.url.rpartition("/runs/")[0].rsplit("/", 2)[0]
    site = _SAME_SITE[1] if site == _SAME_SITE[0] else site
    if asked["site"] is not None and site.lower() != asked["site"].lower():
        return f"its page is at {asked['site']}, and the service that is set up here is {site}"
    if run.state not in _OVER:
        return f"the service says that it is {run.state}"
    created = moment(run.created_at)
    if created is None:
        return f"the service does not say when it was created ({run.created_at!r})"
    if created < not_before(asked["not_before_s"], run.created_at):
        return f"it was created at {run.created_at}, before the attempt began"
    return ""


def moment(text: object) -> datetime | None:
    """Read a time as the service writes it: with an offset, or without one, which is UTC there.

    Example:
        >>> moment("2024-01-15T12:30:45+02:00") == moment("2024-01-15T10:30:45")
        True
    """
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def not_before(began_s: float, created: object) -> datetime:
    """Return the first moment that counts: the whole second where the service says no more than that.

    The two clocks are not the same. Where the service's is behind, a run of the attempt itself may look too old, and is kept.
    Where it is ahead, a run from just before could look new: such a run was resumed, which wandb says in its output, or its id
    is a fixed one, which later attempts use too; either keeps it before anybody is asked.
    """
    began = datetime.fromtimestamp(began_s, UTC)
    return began if "." in str(created) else began.replace(microsecond=0)


def _is_missing(error: BaseException | None) -> bool:
    """Say whether an error means that there is no such run: a ValueError, which newer versions wrap."""
    return error is not None and "Could not find run" in str(error)


if __name__ == "__main__":
    main()
