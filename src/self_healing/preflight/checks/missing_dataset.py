"""The check `missing-dataset`: the data sets that are loaded are on the Hub and may be read."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..names.existence import Existence
from ..names.named import Homes
from ..subject import Kind, Subject
from ..tools import Tools


class MissingDataset(Check):
    """Every data set that is loaded by its name on the Hub is there under that name, and may be read.

    `DatasetNotFoundError: Dataset '...' doesn't exist on the Hub or cannot be accessed` comes after the model has been loaded,
    and says nothing about what the name should have been.
    """

    asks_the_hub = True
    passes = (
        Example('from datasets import load_dataset\ndata = load_dataset("acme/chats", split="train")\n'),
        Example('from datasets import load_dataset\ndata = load_dataset("json", data_files="mine.jsonl")\n'),
    )
    fails = (
        Example('from datasets import load_dataset\ndata = load_dataset("acme/chat", split="train")\n'),
        Example("dataset_name: acme/no-such-thing-at-all\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask the Hub for all of them at once."""
        references = Homes(subject, tools).on_the_hub(Kind.DATASET)
        yield from Existence(self, "dataset", "data set", subject, tools).findings(references)
