"""What a training is resumed from: said to `train()`, in a config or in a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..finding import Place
from ..names.named import Homes
from ..scripts.syntax import is_conditional, syntax_of
from ..subject import Call, Script, Subject
from ..tools import Tools
from .arguments import Training, trainings

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_NEWEST = "get_last_checkpoint"
ANYTHING = ("auto", "latest")
"""Words of several libraries for the newest one."""


@dataclass(frozen=True)
class Resume:
    """One resume that is made, or made where there is something to resume from."""

    where: Place
    path: str
    """The folder as it is given; empty for the newest one in `output`."""
    training: Training | None
    """The one whose arguments are known; None where there are several."""
    output: str | None = None
    """The folder in which the newest is looked for; None where it is not known."""
    is_sure: bool = True
    """Without a checkpoint it fails, rather than begins anew."""

    def folder(self, subject: Subject, tools: Tools) -> Path | None:
        """Return the checkpoint, where it is here."""
        homes = Homes(subject, tools)
        if self.path:
            # the trainer does not know `~` here
            return tools.cwd / self.path if _is_folder(tools.cwd / self.path) else None
        return newest_checkpoint(homes.path(self.output)) if self.output is not None else None


def resumes(subject: Subject) -> Iterator[Resume]:
    """Yield what is resumed on this machine; the folders of another one are not known."""
    if subject.trainer is not None or subject.starts_elsewhere:
        return
    found = trainings(subject)
    for script in subject.scripts:
        mine = [training for training in found if training.script is script]
        for call in script.calls_of("train"):
            resume = _of_call(script, call, mine[0] if len(mine) == 1 else None)
            if resume is not None:
                yield resume
    for training in found:
        given = training.value("resume_from_checkpoint")
        if training.script is not None:
            continue  # what a script does with it stands in its call
        where = training.where("resume_from_checkpoint", "auto_resume_from_checkpoints")
        if isinstance(given, str) and given and given.lower() not in ANYTHING:
            yield Resume(where, given, training)
        elif given is True or training.is_on("auto_resume_from_checkpoints"):
            yield Resume(where, "", training, output_of(training), is_sure=False)


def _of_call(script: Script, call: Call, training: Training | None) -> Resume | None:
    given = call.given(0, "resume_from_checkpoint")
    if given is None or call.is_guarded or is_conditional(script, call):
        return None
    where = Place(script.named, given.line)
    if given.value == "auto" and "self_healing" in script.text:
        return None  # this package's own trainer takes what there is
    if given.value is True:
        return Resume(where, "", training, output_of(training))
    if isinstance(given.value, str):
        return Resume(where, given.value, training) if given.value else None
    flag = training.value("resume_from_checkpoint") if training is not None else None
    if given.text.endswith(".resume_from_checkpoint") and isinstance(flag, str) and flag:
        return Resume(where, flag, training)
    newest = _looked_for(script, given.text)
    return Resume(where, "", training, _looked_in(newest, training), is_sure=False) if newest is not None else None


def _looked_for(script: Script, text: str) -> Call | None:
    """Return the call of `get_last_checkpoint` whose result is meant by a text."""
    calls = list(script.calls_of(_NEWEST))
    kept = [call for call in calls if syntax_of(script).kept_as(call.node) == text or text.startswith(f"{_NEWEST}(")]
    return kept[0] if len(calls) == len(kept) == 1 else None


def _looked_in(call: Call, training: Training | None) -> str | None:
    folder = call.given(0, "folder")
    if folder is None:
        return None
    return (
        folder.value if isinstance(folder.value, str) else output_of(training) if "output_dir" in folder.text else None
    )


def output_of(training: Training | None) -> str | None:
    """Return the folder that a training writes to; None where that is not known."""
    value = training.value("output_dir", "trainer_output") if training is not None else None
    return value if isinstance(value, str) and value and "$" not in value else None


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the highest number, as transformers looks for it."""
    try:
        numbered = [(int(found[1]), each) for each in folder.iterdir() if (found := _CHECKPOINT.fullmatch(each.name))]
    except (OSError, ValueError):
        return None
    return max(((number, each) for number, each in numbered if each.is_dir()), default=(0, None))[1]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long, or a null byte in it
        return False
