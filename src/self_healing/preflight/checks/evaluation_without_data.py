"""The check `evaluation-without-data`: an evaluation that has nothing to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ..check import Check, Example
from ..finding import Finding
from ..subject import Script, Subject
from ..tools import Tools
from ..training import Training, trainings

_EVAL_AT = {"Trainer": 4, "Seq2SeqTrainer": 4, "SFTTrainer": 4, "DPOTrainer": 5, "KTOTrainer": 5, "RewardTrainer": 4,
            "GRPOTrainer": 4, "RLOOTrainer": 4}  # fmt: skip
"""The place of `eval_dataset` among the positional arguments (transformers 5.22, TRL 1.16)."""


class EvaluationWithoutData(Check):
    """Where evaluation is switched on, there is data to evaluate on.

    transformers ends with `You have set args.eval_strategy to steps but you didn't pass an eval_dataset to Trainer`. A scheduler
    that watches the evaluation (`reduce_lr_on_plateau requires an eval strategy`) needs it switched on.
    """

    passes = (
        Example(
            "from trl import *\nSFTTrainer('m', args=SFTConfig('o', eval_strategy='steps'), train_dataset=t, eval_dataset=e)\n"
        ),
        Example("from trl import *\nSFTTrainer('m', args=SFTConfig('o'), train_dataset=t)\n"),
        Example("base_model: m\nval_set_size: 0.05\neval_steps: 50\n", "config.yaml"),
        Example("trl sft --eval_strategy steps --dataset_name d", "command"),
    )
    fails = (
        Example("from trl import *\nSFTTrainer('m', args=SFTConfig('o', eval_strategy='steps'), train_dataset=t)\n"),
        Example("from transformers import *\na = TrainingArguments('o', eval_strategy='epoch')\nTrainer(m, a, c, t)\n"),
        Example("from trl import *\nDPOTrainer('m', args=DPOConfig('o', eval_strategy='steps'), train_dataset=t, eval_dataset=None)\n"),
        Example("base_model: m\nval_set_size: 0\neval_steps: 50\n", "config.yaml"),
        Example("trl sft --lr_scheduler_type reduce_lr_on_plateau", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for the data of each evaluation."""
        for training in trainings(subject):
            if training.owner == "axolotl":
                yield from self._axolotl(training)
                continue
            strategy = training.text("eval_strategy", "no")
            scheduler = training.text("lr_scheduler_type", "linear")
            if (
                scheduler in ("reduce_lr_on_plateau", "greedy")
                and strategy == "no"
                and not training.has("evaluation_strategy")
            ):
                yield self.error(
                    training.where("lr_scheduler_type"), f"lr_scheduler_type {scheduler} requires an eval strategy",
                    'Write eval_strategy="steps" and give an eval_dataset, or take lr_scheduler_type="cosine"',
                )  # fmt: skip
            script = training.script or _reader_of(subject, training)
            if strategy in ("steps", "epoch") and script is not None:
                yield from self._script(script, training, strategy)

    def _script(self, script: Script, training: Training, strategy: str) -> Iterator[Finding]:
        calls = list(script.calls_of(*_EVAL_AT))
        if len(calls) != 1 or (training.script is not None and len(list(script.calls_of(training.owner))) != 1):
            return  # which arguments are whose cannot be told
        call = calls[0]
        given = call.given(_EVAL_AT[call.last], "eval_dataset")
        if call.has_unknown_keywords or (given is not None and given.value is not None):
            return
        if any(word in script.text for word in (".eval_dataset =", "environment_factory")):
            return
        yield self.error(
            training.where("eval_strategy"),
            f"eval_strategy is `{strategy}`, but {call.last} in line {call.line} is given no eval_dataset",
            f'Write {call.last}(..., eval_dataset=...), e.g. of dataset.train_test_split(test_size=0.05), or eval_strategy="no"',
        )

    def _axolotl(self, training: Training) -> Iterator[Finding]:
        share = training.number("val_set_size", 0)
        wants = [name for name in ("eval_steps", "evals_per_epoch", "eval_strategy") if training.has(name)]
        if share or share is None or not wants or training.has("test_datasets") or training.text(wants[0]) == "no":
            return
        if training.setting(wants[0]) is None or training.value(wants[0]) in (None, 0, 0.0):
            return
        yield self.error(
            training.where(wants[0]), f"{wants[0]} is given, but there is no data for an evaluation (val_set_size is 0)",
            "Write val_set_size: 0.05, or test_datasets",
        )  # fmt: skip


def _reader_of(subject: Subject, training: Training) -> Script | None:
    """Return the script that a config was named with and that reads it, whose trainer is the one that it is for."""
    only = subject.scripts[0] if len(subject.scripts) == 1 else None
    name = PurePath(training.place.source).name
    words = subject.command.argv if subject.command is not None else ()
    is_named = only is not None and (name in only.text or any(word.endswith(name) for word in words))
    return only if is_named and training.owner in ("config", "trl") else None
