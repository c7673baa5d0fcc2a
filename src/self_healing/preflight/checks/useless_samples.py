"""The check `useless-samples`: records that are empty, twice there, or whose answers do not differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.samples import Rows, rows_of
from ..training.texts import full_text, text_of
from ..training.trainer_samples import trainer_rows

LARGEST_SHARE = 0.1
"""Of records that are there twice."""
_PAIRS = frozenset({"dpo", "reward", "orpo", "cpo", "kto", "simpo", "ipo"})
_LOAD = "from datasets import load_dataset\nfrom trl import *\nd = load_dataset('json', data_files='d.jsonl', split='train')\n"
_GOOD = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "d", "chosen": "e", "rejected": "f"}\n'
_SAME = '{"prompt": "a", "chosen": "b", "rejected": "b"}\n'
_DPO = f"{_LOAD}DPOTrainer('m', args=DPOConfig('o'), train_dataset=d)\n"
_SFT = f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n"


class UselessSamples(Check):
    """Records hold something, once, and the answers of a pair differ.

    A pair of equal answers has a margin of 0 for ever, and pulls the accuracy to one half. Empty texts become batches of padding.
    Records that are there many times are learned by heart.
    """

    passes = (
        Example(_DPO, files={"d.jsonl": _GOOD}),
        Example(_SFT, files={"d.jsonl": '{"text": "a"}\n{"text": "b"}\n'}),
        Example("base_model: m\nrl: dpo\ndatasets:\n  - path: d.jsonl\n", "config.yaml", files={"d.jsonl": _GOOD}),
    )
    fails = (
        Example(_DPO, files={"d.jsonl": _GOOD + _SAME}),
        Example(_DPO, files={"d.jsonl": _SAME}),
        Example(_SFT, files={"d.jsonl": '{"text": "a"}\n{"text": " "}\n'}),
        Example(_SFT, files={"d.jsonl": '{"text": "a"}\n' * 8}),
        Example("base_model: m\nrl: dpo\ndatasets:\n  - path: d.jsonl\n", "config.yaml", files={"d.jsonl": _SAME}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at some records of the training data."""
        found = trainings(subject)
        if subject.trainer is not None:
            rows = Rows(tuple(trainer_rows(subject.trainer)), found[0].place, "the training data")
            yield from self._of(rows, found[0])
        elif any(each.method for each in found):
            for rows in rows_of(found, subject, tools):
                yield from self._of(rows, found[0])

    def _of(self, rows: Rows, training: Training) -> Iterator[Finding]:
        count = len(rows.rows)
        if training.method in _PAIRS and {"chosen", "rejected"} <= rows.columns:
            same = sum(_same(row) for row in rows.rows)
            if same:
                make = self.error if same == count else self.warning
                yield make(
                    rows.place, f"{same} of {count} pairs in {rows.named} have the same answer as chosen and as rejected",
                    'Write dataset = dataset.filter(lambda row: row["chosen"] != row["rejected"])',
                )  # fmt: skip
        field = training.value("dataset_text_field", "text")
        texts = [full_text(row, field if isinstance(field, str) else "text") for row in rows.rows]
        if not any(texts):
            return  # columns of another kind
        empty = sum(not text.strip() for text in texts)
        if empty:
            yield self.warning(
                rows.place, f"{empty} of {count} records in {rows.named} are empty",
                "Leave them out: dataset = dataset.filter(lambda row: row[...].strip())",
            )  # fmt: skip
        answers = [tuple(text_of(row.get(name)) for name in ("chosen", "rejected", "completion")) for row in rows.rows]
        filled = [pair for pair in zip(texts, answers, strict=True) if pair[0].strip()]
        twice = len(filled) - len(set(filled))
        if filled and twice / len(filled) > LARGEST_SHARE and training.method not in ("grpo", "rloo"):
            yield self.warning(
                rows.place, f"{twice} of {count} records in {rows.named} are there more than once",
                "Leave the copies out, e.g. with datasets.Dataset.from_pandas(frame.drop_duplicates())",
            )  # fmt: skip


def _same(row: Mapping[str, Any]) -> bool:
    chosen, rejected = row.get("chosen"), row.get("rejected")
    return bool(text_of(chosen).strip()) and chosen == rejected
