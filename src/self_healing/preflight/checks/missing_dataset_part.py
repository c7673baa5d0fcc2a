"""The check `missing-dataset-part`: the configuration and the split of a data set that are asked for are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..names.dataset_card import Part, read_card
from ..names.existence import Unanswered, looked_up
from ..names.named import Homes
from ..names.near import near_name
from ..subject import Kind, Reference, Subject
from ..tools import Tools

_SPLIT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?")
_UNDECLARED = "its card does not declare the configuration or the splits that are asked for; its page has them, and heal check --steps 2 loads them"
_LOAD = "from datasets import load_dataset\ndata = load_dataset({})\n"


class MissingDatasetPart(Check):
    """The configuration and the split that are loaded are ones that the card of the data set declares.

    `ValueError: Unknown split "validation". Should be one of ['train', 'test']`, `BuilderConfig '...' not found` and
    `Config name is missing` come when the data set is prepared. Where the card does not declare what is asked for, it was not looked at.
    """

    asks_the_hub = True
    passes = (
        Example(_LOAD.format('"acme/chats", split="train[:10%]+test"')),
        Example(_LOAD.format('"acme/pairs", "easy", split="train"')),
        Example(_LOAD.format('"acme/bare"')),
        Example("import os\n" + _LOAD.format('"acme/pairs", os.environ["SUBSET"], split="train"')),
    )
    fails = (
        Example(_LOAD.format('"acme/chats", split="validation"')),
        Example(_LOAD.format('"acme/pairs", "middling", split="train"')),
        Example(_LOAD.format('"acme/pairs", split="train"')),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Read the cards."""
        silent = Unanswered()
        names = Homes(subject, tools)
        wanted = [each for each in subject.references if each.kind is Kind.DATASET]
        on_hub = {each.name for each in names.on_the_hub(Kind.DATASET)}
        for reference, answer in looked_up([each for each in wanted if each.name in on_hub], "dataset", tools, silent):
            if answer.repository is None:
                continue
            card = read_card(answer.repository.card)
            config = reference.config
            if config is None and _has_config(subject, names, reference):
                continue  # one that cannot be known here
            if config is None and card.needs_a_config:
                yield self.error(
                    reference.place, f"{reference.name}: has several configurations, and none is named",
                    f'Name one: load_dataset("{reference.name}", "{min(card.parts)}"); there are {_listed(card.parts)}',
                )  # fmt: skip
            elif config is not None and card.parts and set(card.parts) != {"default"} and config not in card.parts:
                near = near_name(config, tuple(card.parts))
                yield self.error(
                    reference.place, f"{reference.name}: has no configuration {config!r}" + _meant(near),
                    f'Write "{near or min(card.parts)}"; there are {_listed(card.parts)}',
                )  # fmt: skip
            elif (part := card.part(config)) is not None and (part.splits or not reference.split):
                yield from self._splits(reference, part)
            elif config is not None or reference.split:
                silent.add(reference.name, _UNDECLARED)
        silent.tell()

    def _splits(self, reference: Reference, part: Part) -> Iterator[Finding]:
        for word in (reference.split or "").split("+"):
            asked = _SPLIT.fullmatch(word.strip())
            if asked is None or asked[1] in part.splits or asked[1] == "all":
                continue
            near = near_name(asked[1], part.splits)
            yield self.error(
                reference.place, f"{reference.name}: has no split {asked[1]!r}" + _meant(near),
                f'Write split="{near or _likely(part)}"; there are {_listed(part.splits)}',
            )  # fmt: skip


def _has_config(subject: Subject, names: Homes, reference: Reference) -> bool:
    """Say whether a configuration is given that cannot be known here, or stands elsewhere in a config."""
    call = names.call_at(reference, "load_dataset", "load_dataset_builder")
    if call is not None:
        others = ("data_files", "data_dir")
        is_chosen = call.given(1, "name") is not None or any(other in call.keywords for other in others)
        return is_chosen or call.has_unknown_keywords
    return bool(subject.all("dataset_config", "dataset_config_name", "dataset_subset", "name", "config_name"))


def _listed(names: object) -> str:
    return ", ".join(sorted(names)) if isinstance(names, dict | frozenset) else ""


def _meant(near: str | None) -> str:
    return f"; did you mean {near}?" if near is not None else ""


def _likely(part: Part) -> str:
    return "train" if "train" in part.splits else min(part.splits)
