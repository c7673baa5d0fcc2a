"""The check `cut-samples`: records that are longer than what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.samples import rows_of
from ..training.texts import counter_of, full_text
from ..training.trainer_samples import trainer_rows

LARGEST_SHARE = 0.1
_DEFAULT = 1024
"""TRL 1.16: max_length of SFT, DPO, KTO and Reward."""
_METHODS = ("sft", "dpo", "kto", "reward")
_LOAD = "from datasets import load_dataset\nfrom trl import *\nd = load_dataset('json', data_files='d.jsonl', split='train')\n"
_LONG = '{"text": "' + "word " * 2000 + '"}\n'


class CutSamples(Check):
    """Most records are kept whole.

    What stands behind `max_length` is cut off without a word, and with it the end of the answer: the model learns answers that do
    not end. TRL keeps 1024 tokens unless it is told otherwise.
    """

    passes = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', max_length=16384), train_dataset=d)\n", files={"d.jsonl": _LONG}),
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', packing=True), train_dataset=d)\n", files={"d.jsonl": _LONG}),
        Example("model_name_or_path: m\nmax_length: 100\ndatasets:\n  - path: d.jsonl\n", "config.yaml", files={"d.jsonl": '{"text": "a"}\n'}),
    )  # fmt: skip
    fails = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", files={"d.jsonl": _LONG}),
        Example(f"{_LOAD}DPOTrainer('m', args=DPOConfig('o', max_length=64), train_dataset=d)\n", files={"d.jsonl": _LONG.replace("text", "chosen")}),
        Example("base_model: m\nsequence_len: 256\ndatasets:\n  - path: d.jsonl\n", "config.yaml", files={"d.jsonl": _LONG}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Count the records that are too long."""
        found = [each for each in trainings(subject) if _cuts(each)]
        if subject.trainer is not None:
            for training in found:
                lengths = [len(row["input_ids"]) for row in trainer_rows(subject.trainer) if "input_ids" in row]
                longest, place = _longest(training), training.where("max_length")
                yield from self._of(sum(each >= longest for each in lengths), len(lengths), longest, place, "")
            return
        count, is_exact = counter_of(subject, tools.cwd)
        for rows in rows_of(found, subject, tools):
            training, longest = found[0], _longest(found[0])
            field = training.value("dataset_text_field", "text")
            texts = [full_text(row, field if isinstance(field, str) else "text") for row in rows.rows]
            cut = sum(count(text) > longest for text in texts)
            about = "" if is_exact else " (counted with 6 characters to a token, so it is more)"
            place = training.where("max_length") if training.has("max_length") else rows.place
            yield from self._of(cut, len(texts), longest, place, about)

    def _of(self, cut: int, count: int, longest: float, place: Place, about: str) -> Iterator[Finding]:
        if count and cut / count > LARGEST_SHARE:
            yield self.warning(
                place, f"{cut} of {count} records have more than {longest:g} tokens{about}: they are cut, or left out by Axolotl, and the end of their answers is lost",
                f"Write max_length={int(longest * 2)} (sequence_len for Axolotl), split the records, or leave the long ones out",
            )  # fmt: skip


def _cuts(training: Training) -> bool:
    packs = training.value("packing", training.value("sample_packing", default=False))
    return training.method in _METHODS and packs is False and _longest(training) >= 1


def _longest(training: Training) -> float:
    """Return how many tokens are kept; 0 where all are, or it is not known."""
    return training.number("max_length", _DEFAULT if training.is_trl else None) or 0
