"""The check `masked-samples`: records of which nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.samples import Rows, rows_of
from ..training.texts import assistant_text, counter_of, full_text, text_of
from ..training.trainer_samples import labelled

SMALLEST_SHARE = 0.01
_LOAD = "from datasets import load_dataset\nfrom trl import *\nd = load_dataset('json', data_files='d.jsonl', split='train')\n"
_TALK = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n'
_MUTE = '{"messages": [{"role": "user", "content": "Hi"}]}\n'


class MaskedSamples(Check):
    """Every record has tokens that count for the loss.

    Prompts, other speakers and padding are masked with -100. Where nothing else is left of a record, it teaches nothing (TRL
    1.16 drops it without a word); where that holds for a whole batch, its loss is NaN. The usual causes are a template whose marks are not found, an answer
    that stands behind `max_length`, and answers that are empty.
    """

    passes = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', assistant_only_loss=True), train_dataset=d)\n", files={"d.jsonl": _TALK}),
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"prompt": "a", "completion": "b"}\n'}),
    )  # fmt: skip
    fails = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', assistant_only_loss=True), train_dataset=d)\n", files={"d.jsonl": _TALK + _MUTE}),
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"prompt": "a", "completion": ""}\n'}),
        Example(
            f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', max_length=16), train_dataset=d)\n",
            files={"d.jsonl": f'{{"prompt": "{"word " * 100}", "completion": "b"}}\n'},
        ),
        Example(
            f"{_LOAD}SFTTrainer('m', args=SFTConfig('o', max_length=8192), train_dataset=d)\n",
            files={"d.jsonl": f'{{"prompt": "{"word " * 500}", "completion": "yes"}}\n'},
        ),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the labels of a trainer's records, or at what can be known of those in files."""
        if subject.trainer is not None:
            found: list[tuple[float, float]] = [(each.tokens, each.trained) for each in labelled(subject.trainer)]
            training = trainings(subject)[0]
            yield from self._counted(found, Rows((), training.place, "the training data"))
            return
        found_trainings = [each for each in trainings(subject) if each.method == "sft" and each.owner != "axolotl"]
        count, is_exact = counter_of(subject, tools.cwd)
        for rows in rows_of(found_trainings, subject, tools):
            found = [_tokens(row, found_trainings[0], count) for row in rows.rows]
            yield from self._counted(found, rows, "" if is_exact else "about ")

    def _counted(self, found: list[tuple[float, float]], rows: Rows, about: str = "") -> Iterator[Finding]:
        masked = sum(trained == 0 for _, trained in found)
        tokens, trained = sum(each[0] for each in found), sum(each[1] for each in found)
        if masked:
            yield self._finding(masked, len(found), rows)
        elif tokens and trained / tokens < SMALLEST_SHARE:
            yield self.warning(
                rows.place, f"only {trained / tokens:.1%} of the tokens count for the loss ({about}{trained:,.0f} of {tokens:,.0f} in {len(found)} records)",
                "Look at what is masked: print one record's labels; shorten the prompts, or train on them too",
            )  # fmt: skip

    def _finding(self, masked: int, count: int, rows: Rows) -> Finding:
        make = self.error if masked == count else self.warning
        return make(
            rows.place, f"{masked} of {count} records in {rows.named} have no token that counts for the loss",
            "Leave them out with dataset.filter(...), raise max_length where the answer is cut off, and see that the answers are not empty",
        )  # fmt: skip


def _tokens(row: Mapping[str, Any], training: Training, count: Callable[[str], float]) -> tuple[float, float]:
    """Return how many tokens a record has, and how many count for the loss; all of them where nothing is known to be masked."""
    if training.is_on("assistant_only_loss") and (said := assistant_text(row.get("messages"))) is not None:
        return count(text_of(row["messages"])), count(said) if said.strip() else 0
    if "prompt" not in row or "completion" not in row or training.value("completion_only_loss") is False:
        field = training.value("dataset_text_field", "text")
        whole = max(1, count(full_text(row, field if isinstance(field, str) else "text")))
        return whole, whole
    answer, prompt = text_of(row["completion"]), count(text_of(row["prompt"]))
    longest = training.number("max_length", 1024)
    asked, said_of_it = prompt, count(answer) if answer.strip() else 0
    if longest is not None:  # the end is cut off
        asked, said_of_it = min(prompt, longest), min(said_of_it, max(0, longest - prompt))
    return asked + said_of_it, said_of_it
