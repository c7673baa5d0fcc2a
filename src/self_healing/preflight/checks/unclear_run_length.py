"""The check `unclear-run-length`: a run whose end is not known, or said twice."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import trainings
from ..training.looks import streamed_at


class UnclearRunLength(Check):
    """How long the run takes is said once, and can be known.

    `max_steps` overrides `num_train_epochs`. Data that is streamed has no length: transformers ends with `max_steps has to be
    specified` where only epochs are given.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', num_train_epochs=3)\n"),
        Example("from datasets import load_dataset\nfrom trl import *\nload_dataset('d', streaming=True)\nSFTConfig('o', max_steps=9)\n"),
        Example("base_model: m\nnum_epochs: 2\n", "config.yaml"),
        Example("trl sft --max_steps 100", "command"),
    )  # fmt: skip
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', num_train_epochs=3, max_steps=100)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', num_train_epochs=0)\n"),
        Example("from datasets import load_dataset\nfrom trl import *\nd = load_dataset('d', streaming=True)\nSFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"),
        Example("base_model: m\nnum_epochs: -1\n", "config.yaml"),
        Example("trl sft --dataset_name d --dataset_streaming", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at steps, epochs and streaming."""
        if subject.trainer is not None:
            return  # its constructor has seen to that
        for training in trainings(subject):
            epochs, steps = training.number("num_train_epochs"), training.number("max_steps")
            if steps is not None and steps > 0:
                if epochs is not None and training.has("num_train_epochs"):
                    yield self.info(
                        training.where("max_steps"), f"max_steps ({steps:g}) overrides the {epochs:g} epochs",
                        "Keep one of the two",
                    )  # fmt: skip
            elif epochs is not None and epochs <= 0 and training.owner not in ("config", "command"):
                key = training.shown("num_train_epochs")
                yield self.error(
                    training.where("num_train_epochs"),
                    f"{key} is {epochs:g}: nothing is trained",
                    f"Write {key} with 1 or more",
                )
            elif not training.has("max_steps") and training.is_whole and (place := streamed_at(training)):
                yield self.error(
                    training.where("num_train_epochs"), f"the data is streamed ({place}), so its length is not known: max_steps has to be specified",
                    "Write max_steps=...: examples / (batch size x accumulation x processes) per epoch",
                )  # fmt: skip
