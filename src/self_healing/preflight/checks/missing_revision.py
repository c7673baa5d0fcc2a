"""The check `missing-revision`: branches, tags and commits that are named are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hub import References, State
from ..hub.hub import RepositoryKind
from ..names.existence import Unanswered, looked_up
from ..names.named import Homes
from ..names.near import near_name
from ..subject import Kind, Reference, Subject
from ..tools import Tools

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_MOST_SHOWN = 8
_LOAD = "from transformers import AutoModel\nmodel = AutoModel.from_pretrained({})\n"
_FIRST, _LATEST = "a" * 40, "b" * 40
"""The commits of the repository in the examples."""


class MissingRevision(Check):
    """Every revision that is asked for is a branch, a tag or a commit of its repository.

    `OSError: ... is not a valid git identifier (branch name, tag name or commit id)` names none that is. Where a commit is
    pinned and the repository has moved on since, that is told, and is no problem: pins are for that.
    """

    asks_the_hub = True
    passes = (
        Example(_LOAD.format('"acme/tiny-0.5B", revision="v1.0"')),
        Example(_LOAD.format(f'"acme/tiny-0.5B", revision="{_LATEST}"')),
        Example(_LOAD.format('"acme/tiny-0.5B"')),
    )
    fails = (
        Example(_LOAD.format('"acme/tiny-0.5B", revision="fp61"')),
        Example(_LOAD.format(f'"acme/tiny-0.5B", revision="{_FIRST}"')),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask for each repository at its revision and, of a pinned commit, as it is today."""
        silent = Unanswered()
        names = Homes(subject, tools)
        of_models = names.on_the_hub(Kind.MODEL, Kind.TOKENIZER, Kind.ADAPTER)
        of_data = names.on_the_hub(Kind.DATASET)
        kinds: tuple[tuple[RepositoryKind, list[Reference]], ...] = (("model", of_models), ("dataset", of_data))
        for kind, references in kinds:
            pinned = [each for each in references if each.revision]
            for each in pinned:
                tools.hub.repository(kind, each.name)  # on its way while the others are asked
            for reference, answer in looked_up(pinned, kind, tools, silent):
                if answer.state is State.NO_REVISION:
                    known = tools.hub.references(kind, reference.name).answer()
                    yield self._missing(reference, known)
                elif answer.state is State.FOUND:
                    yield from self._moved_on(reference, kind, tools)
        silent.tell()

    def _missing(self, reference: Reference, known: References) -> Finding:
        revision = reference.revision or ""
        names = [*known.branches, *known.tags]
        near = near_name(revision, names)
        branches, tags = ", ".join(known.branches[:_MOST_SHOWN]), ", ".join(known.tags[:_MOST_SHOWN])
        there_are = f"there are the branches {branches}" + (f" and the tags {tags}" if tags else " and no tags")
        fix = f'Write revision="{near}"; ' if near is not None else "Take one that is there, or leave revision out; "
        return self.error(
            reference.place,
            f"{reference.name}: has no revision {revision!r}" + (f"; did you mean {near}?" if near is not None else ""),
            fix + (there_are if names else "the page of the repository lists them under Files"),
        )

    def _moved_on(self, reference: Reference, kind: RepositoryKind, tools: Tools) -> Iterator[Finding]:
        revision = (reference.revision or "").lower()
        if not _COMMIT.fullmatch(revision):
            return
        today = tools.hub.repository(kind, reference.name).answer().repository
        if today is not None and today.sha and not today.sha.startswith(revision):
            when = f" (last on {today.last_modified[:10]})" if today.last_modified else ""
            prefix = "datasets/" if kind == "dataset" else ""
            yield self.info(
                reference.place, f"{reference.name}: has changed since the pinned commit {revision[:12]}{when}",
                f"Keep the pin, or see {tools.hub.endpoint}/{prefix}{reference.name}/commits/main "
                f'and write revision="{today.sha}"',
            )  # fmt: skip
