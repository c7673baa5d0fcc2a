"""The check `missing-dataset-columns`: the columns that a training needs are in its data set."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..names.dataset_card import read_card
from ..names.existence import Unanswered, looked_up
from ..names.named import Homes
from ..names.near import near_name
from ..subject import Kind, Reference, Subject
from ..tools import Tools

_CHANGES = frozenset(
    """map rename_column rename_columns add_column remove_columns select_columns cast with_transform set_transform
    from_list from_dict from_generator from_pandas concatenate_datasets interleave_datasets apply_chat_template
    flatten batch class_encode_column""".split()
)
"""Calls after which the columns are others than those on the Hub."""
_NEEDED: dict[str, tuple[frozenset[str], ...]] = {
    "dpo": (frozenset({"chosen", "rejected"}),),
    "reward": (frozenset({"chosen", "rejected"}),),
    "orpo": (frozenset({"chosen", "rejected"}),),
    "cpo": (frozenset({"chosen", "rejected"}),),
    "kto": (frozenset({"completion", "label"}), frozenset({"chosen", "rejected"})),
    "grpo": (frozenset({"prompt"}),),
    "rloo": (frozenset({"prompt"}),),
    "sft": (
        frozenset({"text"}), frozenset({"messages"}), frozenset({"conversations"}), frozenset({"prompt", "completion"}),
        frozenset({"input_ids"}),
    ),
}  # fmt: skip
"""By method the sets of columns of which TRL's trainers need one."""
_UNDECLARED = "its card does not declare its columns; --samples 64 looks at its records, and SelfHealingTrainer.check() at those of the trainer"
_LOAD = 'from datasets import load_dataset\ndata = load_dataset("acme/{}", split="train")\n'
_PAIRS = 'from datasets import load_dataset\ndata = load_dataset("acme/pairs", "easy", split="train")\n'


class MissingDatasetColumns(Check):
    """The columns that are asked for by name, and those the method needs, are columns of the data set.

    A preference trainer on a data set of chats ends with `KeyError: 'chosen'`, and a `dataset_text_field` that is not there
    with `KeyError` as well, after everything has been loaded. Where a script changes the columns, nothing is said; where the card of
    the data set does not say which it has, they were not looked at.
    """

    asks_the_hub = True
    passes = (
        Example(_LOAD.format("chats") + "from trl import SFTTrainer\nSFTTrainer(train_dataset=data)\n"),
        Example(_PAIRS + "from trl import DPOTrainer\nDPOTrainer(train_dataset=data)\n"),
        Example(
            _LOAD.format("chats")
            + "data = data.map(pairs)\nfrom trl import DPOTrainer\nDPOTrainer(train_dataset=data)\n"
        ),
    )
    fails = (
        Example(_LOAD.format("chats") + "from trl import DPOTrainer\nDPOTrainer(train_dataset=data)\n"),
        Example("trl sft --dataset_name acme/chats --dataset_text_field txt", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Read the cards, where what they say is what the trainer gets."""
        if any(True for _ in subject.calls(lambda call: call.last in _CHANGES)):
            return
        silent = Unanswered()
        for reference, answer in looked_up(Homes(subject, tools).on_the_hub(Kind.DATASET), "dataset", tools, silent):
            if answer.repository is None:
                continue
            part = read_card(answer.repository.card).part(reference.config)
            columns = part.columns if part is not None else frozenset()
            if columns:
                yield from self._asked_for(subject, reference, columns)
                yield from self._needed(subject, reference, columns)
            elif not tools.options.samples and (_asked(subject, reference, columns) or _needs(subject)):
                silent.add(reference.name, _UNDECLARED)
        silent.tell()

    def _asked_for(self, subject: Subject, reference: Reference, columns: frozenset[str]) -> Iterator[Finding]:
        for column, place in _asked(subject, reference, columns).items():
            if column not in columns:
                near = near_name(column, columns)
                yield self.error(
                    place, f"{reference.name}: has no column {column!r}" + (f"; did you mean {near}?" if near else ""),
                    f"Name one that it has: {', '.join(sorted(columns))}",
                )  # fmt: skip

    def _needed(self, subject: Subject, reference: Reference, columns: frozenset[str]) -> Iterator[Finding]:
        needed = _needs(subject)
        if needed and not any(each <= columns for each in needed):
            ways = " or ".join(" and ".join(sorted(each)) for each in needed)
            yield self.error(
                reference.place,
                f"{reference.name}: has the columns {', '.join(sorted(columns))}, but {subject.method} needs {ways}",
                f"Take a data set made for {subject.method}, or turn its rows into that with data.map(...)",
            )


def _asked(subject: Subject, reference: Reference, columns: frozenset[str]) -> dict[str, Place]:
    """Return the columns that are asked for by name, and where."""
    field = subject.setting("dataset_text_field")
    asked: dict[str, Place] = dict.fromkeys(reference.columns, reference.place)
    if field is not None and isinstance(field.value, str) and not _has_format(subject):
        is_used = not columns & {"messages", "conversations", "prompt"} or field.value != "text"
        asked |= {field.value: field.place} if is_used else {}
    return asked


def _needs(subject: Subject) -> tuple[frozenset[str], ...]:
    """Return the sets of columns of which the method needs one; none where any columns may do."""
    is_one_of_many = len({each.name for each in subject.references if each.kind is Kind.DATASET}) > 1
    has_field = subject.setting("dataset_text_field") is not None or _has_format(subject)
    if is_one_of_many or (subject.method == "sft" and has_field):
        return ()
    return _NEEDED.get(subject.method, ())


def _has_format(subject: Subject) -> bool:
    return subject.setting("formatting_func", "data_collator", "compute_loss_func") is not None
