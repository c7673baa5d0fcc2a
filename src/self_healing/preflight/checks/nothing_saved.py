"""The check `nothing-saved`: a run that leaves nothing, or everything, behind."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings

LONG_STEPS = 2_000
LONG_HOURS = 2.0
TRIAL_STEPS = 100
"""So short a run is made to see whether it runs."""
_SAVES = ("save_model", "save_pretrained", "push_to_hub", "save_pretrained_merged", "push_to_hub_merged", "save", "save_state",
          "save_file", "save_checkpoint")  # fmt: skip


class NothingSaved(Check):
    """What is trained is saved, often enough that a crash does not cost the whole run.

    With `save_strategy="no"` and no `trainer.save_model()` the weights are gone when the process ends. A long run that saves
    only at its end starts again from the beginning after every crash. `save_total_limit=0` does not mean none: every
    checkpoint is kept, until the disk is full.
    """

    passes = (
        Example(
            "from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_strategy='no'))\nt.train()\nt.save_model()\n"
        ),
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', max_steps=100))\nt.train()\n"),
        Example(
            "from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_strategy='no', max_steps=10))\nt.train()\n"
        ),
        Example("base_model: m\nsave_steps: 100\nsave_total_limit: 2\n", "config.yaml"),
        Example("trl sft --save_strategy epoch --save_total_limit 3", "command"),
    )
    fails = (
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_strategy='no'))\nt.train()\n"),
        Example("from trl import *\nSFTConfig('o', max_steps=20000, save_steps=50000)\n"),
        Example("from trl import *\nSFTConfig('o', save_total_limit=0)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', save_steps=2.5)\n"),
        Example("model_name_or_path: m\nmax_steps: 5000\nsave_strategy: no\n", "config.yaml"),
        Example("trl sft --max_steps 10000 --save_strategy no", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at how often each training saves."""
        for training in trainings(subject):
            yield from self._of(training, tools.options.duration_h)

    def _of(self, training: Training, hours: float | None) -> Iterator[Finding]:
        saves, steps = training.text("save_strategy", "steps"), training.number("save_steps", 500)
        most = training.number("max_steps", -1) or -1
        is_long = most >= LONG_STEPS or (hours or 0) >= LONG_HOURS
        limit = training.number("save_total_limit")
        if limit is not None and limit <= 0:
            yield self.warning(
                training.where("save_total_limit"), f"save_total_limit is {limit:g}, which keeps every checkpoint",
                "Write save_total_limit=2",
            )  # fmt: skip
        if saves == "no":
            if training.script is not None and not _is_saved_later(training):
                if 0 < most <= TRIAL_STEPS:
                    return
                yield self.warning(
                    training.where("save_strategy"), 'save_strategy is "no" and nothing saves the model: its weights are gone when the script ends',
                    "Add trainer.save_model() behind trainer.train(), or remove save_strategy",
                )  # fmt: skip
            elif is_long:
                yield self.warning(
                    training.where("save_strategy"), f"a run of {f'{most:g} steps' if most > 0 else f'{hours:g} hours'} without checkpoints: a crash costs all of it",
                    'Write save_strategy="steps", save_steps=500, save_total_limit=2',
                )  # fmt: skip
        elif saves == "steps" and steps is not None:
            if steps > 1 and steps != int(steps):
                yield self.error(
                    training.where("save_steps"), f"save_steps must be an integer if bigger than 1: {steps:g}",
                    f"Write save_steps={int(steps)}",
                )  # fmt: skip
            elif most >= LONG_STEPS and steps > most:
                yield self.warning(
                    training.where("save_steps", "max_steps"), f"the first checkpoint would come at step {steps:g}, and the run has {most:g}: a crash costs all of it",
                    f"Write save_steps={max(1, int(most // 20))}",
                )  # fmt: skip


def _is_saved_later(training: Training) -> bool:
    script = training.script
    assert script is not None
    if training.is_on("push_to_hub") or any(script.calls_of(*_SAVES)):
        return True
    return not any(script.calls_of("train"))  # what trains is somewhere else, and may save
