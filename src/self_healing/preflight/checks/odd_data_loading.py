"""The check `odd-data-loading`: workers of the data loader that are too many, or settings that need some."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.looks import streamed_at

MOST_WORKERS = 32
"""For each process; each holds the data set's handles and some hundred MiB."""


class OddDataLoading(Check):
    """The data loader has a sensible number of workers, and what it is told fits the data.

    `dataloader_prefetch_factor can only be set when data is loaded in a different process`, says transformers; so it is with
    persistent workers. Hundreds of workers take the host's memory and are killed. Grouping by length needs to see all
    lengths, which streamed data does not show.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', dataloader_num_workers=4, dataloader_prefetch_factor=2)\n"),
        Example("base_model: m\ndataloader_num_workers: 8\n", "config.yaml"),
        Example("trl sft --dataloader_num_workers 2", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', dataloader_prefetch_factor=2)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', dataloader_num_workers=-1)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', dataloader_num_workers=128)\n"),
        Example(
            "from datasets import load_dataset\nfrom transformers import *\nload_dataset('d', streaming=True)\n"
            "TrainingArguments('o', max_steps=10, train_sampling_strategy='group_by_length')\n"
        ),
        Example("base_model: m\ndataloader_num_workers: 256\n", "config.yaml"),
        Example("trl sft --dataloader_num_workers 0 --dataloader_persistent_workers True", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the loader's settings."""
        for training in trainings(subject):
            yield from self._of(training)

    def _of(self, training: Training) -> Iterator[Finding]:
        workers = training.number("dataloader_num_workers", 0)
        where = training.where("dataloader_num_workers")
        if workers is not None and (workers < 0 or workers != int(workers)):
            yield self.error(where, f"dataloader_num_workers is {workers:g}", "Write dataloader_num_workers=2")
        elif workers is not None and workers > MOST_WORKERS:
            yield self.warning(
                where, f"{workers:g} workers for each process: they take the host's memory and open files", "Write dataloader_num_workers=4"
            )  # fmt: skip
        elif workers == 0 and training.owner != "axolotl":
            factor = training.value("dataloader_prefetch_factor")
            if isinstance(factor, int) and not isinstance(factor, bool):
                yield self.error(
                    training.where("dataloader_prefetch_factor"),
                    "dataloader_prefetch_factor can only be set when dataloader_num_workers > 0",
                    "Write dataloader_num_workers=2, or remove dataloader_prefetch_factor",
                )
            if training.is_on("dataloader_persistent_workers"):
                yield self.error(
                    training.where("dataloader_persistent_workers"), "persistent_workers option needs num_workers > 0",
                    "Write dataloader_num_workers=2, or remove dataloader_persistent_workers",
                )  # fmt: skip
        groups = training.is_on("group_by_length") or training.text("train_sampling_strategy") == "group_by_length"
        if groups and streamed_at(training):
            yield self.warning(
                training.where("group_by_length", "train_sampling_strategy"),
                "grouping by length is ignored: the data is streamed, and its lengths are not known",
                "Remove it, or load the data without streaming=True",
            )
