"""The check `resume-from-nothing`: a resume that finds no checkpoint, or not the data it left."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..names.named import Homes
from ..subject import UNKNOWN, Call, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.resuming import ANYTHING, Resume, resumes


class ResumeFromNothing(Check):
    """A run that resumes finds its checkpoint, the optimizer in it, and the data where it left them.

    `trainer.train(resume_from_checkpoint=True)` ends with `No valid checkpoint found in output directory` where there is none, so
    the first run of such a script fails. In `TrainingArguments` the argument is only kept for scripts: the trainer does
    not look at it. `ignore_data_skip` begins the epoch's data anew; `save_only_model` leaves out the optimizer.
    """

    passes = (
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o'))\nt.train()\n"),
        Example(
            "import os\nfrom trl import *\nt = SFTTrainer('m', args=SFTConfig('o'))\n"
            "t.train(resume_from_checkpoint=True if os.path.isdir('o') else None)\n"
        ),
        Example(
            "import os\nfrom trl import *\nt = SFTTrainer('m', args=SFTConfig('o'))\nif os.listdir('o'):\n"
            "    t.train(resume_from_checkpoint=True)\n"
        ),
        Example(
            "from self_healing import SelfHealingTrainer\nt = SelfHealingTrainer(m)\nt.train(resume_from_checkpoint='auto')\n"
        ),
        Example("base_model: m\nauto_resume_from_checkpoints: true\n", "config.yaml"),
        Example("trl sft --output_dir out", "command"),
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_only_model=True))\nt.train()\n"),
    )
    fails = (
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o'))\nt.train(resume_from_checkpoint=True)\n"),
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o'))\nt.train('o/checkpoint-500')\n"),
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', resume_from_checkpoint='c'))\nt.train()\n"),
        Example("base_model: m\nresume_from_checkpoint: ./out/checkpoint-100\n", "config.yaml"),
        Example("trl sft --resume_from_checkpoint out/checkpoint-9 --ignore_data_skip", "command"),
        Example(
            "from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_only_model=True))\n"
            "t.train(resume_from_checkpoint=get_last_checkpoint('o'))\n"
        ),
        Example("base_model: m\nauto_resume_from_checkpoints: true\nsave_only_model: true\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for what is resumed from."""
        for resume in resumes(subject):
            yield from self._found(resume, subject, tools)
        found = trainings(subject) if subject.trainer is None else []
        for script in subject.scripts:
            if any(_may_resume(call) for call in script.calls_of("train")):
                for training in found:
                    if training.script is script:
                        yield from self._contents(training)
        for training in found:
            resumed = training.value("resume_from_checkpoint")
            if training.is_on("auto_resume_from_checkpoints") or (training.script is None and resumed is True):
                yield from self._contents(training)
            if isinstance(resumed, str) and resumed and resumed.lower() not in ANYTHING:
                yield from self._unused(training, resumed) if training.script is not None else ()
                yield from self._contents(training)

    def _found(self, resume: Resume, subject: Subject, tools: Tools) -> Iterator[Finding]:
        if not resume.is_sure or resume.folder(subject, tools) is not None:
            return
        homes = Homes(subject, tools)
        if resume.path.startswith("~") and homes.exists(resume.path):
            yield self.error(
                resume.where, f"it is to resume from {resume.path}, and the trainer does not know `~`: it looks for a folder of that name",
                f'Write os.path.expanduser("{resume.path}"), or the whole path: {homes.path(resume.path)}',
            )  # fmt: skip
        elif resume.path and not homes.exists(resume.path):
            yield self.error(
                resume.where, f"it is to resume from {resume.path}, which is not here",
                "Name a folder checkpoint-N that exists, or remove resume_from_checkpoint to begin anew",
            )  # fmt: skip
        elif not resume.path and resume.output is not None:
            yield self.error(
                resume.where, f"resume_from_checkpoint is True, but there is no checkpoint in {resume.output}: the run ends with `No valid checkpoint found in output directory`",
                "Write trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir)) with `from transformers.trainer_utils import get_last_checkpoint`, behind os.makedirs(output_dir, exist_ok=True): it is None on the first run",
            )  # fmt: skip

    def _unused(self, training: Training, resumed: str) -> Iterator[Finding]:
        assert training.script is not None
        calls = list(training.script.calls_of("train"))
        if calls and not any(call.given(0, "resume_from_checkpoint") or call.has_unknown_keywords for call in calls):
            yield self.warning(
                training.where("resume_from_checkpoint"),
                f"resume_from_checkpoint={resumed!r} stands in {training.owner}, where the trainer does not look at it: training begins anew",
                f"Write trainer.train(resume_from_checkpoint={resumed!r})",
            )

    def _contents(self, training: Training) -> Iterator[Finding]:
        if training.is_on("ignore_data_skip"):
            yield self.warning(
                training.where("ignore_data_skip"), "ignore_data_skip is on: a run that is resumed sees the first data of its epoch again, and never the last",
                "Remove ignore_data_skip",
            )  # fmt: skip
        if training.is_on("save_only_model"):
            yield self.warning(
                training.where("save_only_model"), "save_only_model leaves the optimizer out of checkpoints: what resumes from one begins with a new optimizer and schedule",
                "Remove save_only_model",
            )  # fmt: skip


def _may_resume(call: Call) -> bool:
    """Say whether a call is made to resume, now or where it finds something to resume from."""
    given = call.given(0, "resume_from_checkpoint")
    if given is None or given.value in (None, False, ""):
        return False
    return given.value is not UNKNOWN or not given.text.endswith(
        ".resume_from_checkpoint"
    )  # an option, mostly not given
