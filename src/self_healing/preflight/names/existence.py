"""Findings about repositories that have to be on the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..check import CannotRun, Check
from ..finding import Finding
from ..hub import Answer, Hub, Repository, State
from ..hub.hub import RepositoryKind
from ..subject import Reference, Subject
from ..tools import Tools
from .named import also_at
from .near import MOST_SHOWN, Suggestions

_ABSENT = (State.MISSING, State.HIDDEN, State.WRONG_TOKEN)


def log_in(hub: Hub) -> str:
    """Say how to give a token."""
    return f"run `hf auth login` (or set HF_TOKEN) with a token from {hub.endpoint}/settings/tokens"


class Unanswered:
    """What the Hub said nothing about, which is neither a pass nor a finding."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def add(self, name: str, why: str) -> None:
        """Note something that could not be looked up."""
        self._names.setdefault(why, {})[name] = None

    def tell(self) -> None:
        """Raise CannotRun where there is something.

        Raises:
            CannotRun: with the names, and why each could not be looked up.

        """
        if self._names:
            raise CannotRun("; ".join(f"{', '.join(names)}: {why}" for why, names in self._names.items()))


def looked_up(
    references: Sequence[Reference], kind: RepositoryKind, tools: Tools, silent: Unanswered
) -> list[tuple[Reference, Answer]]:
    """Ask for all repositories at once; what is not answered goes to `silent`."""
    asked = [(each, tools.hub.repository(kind, each.name, each.revision)) for each in references]
    answered = []
    for reference, question in asked:
        answer = question.answer()
        if answer.is_unanswered:
            silent.add(reference.name, answer.detail)
        else:
            answered.append((reference, answer))
    return answered


@dataclass(frozen=True)
class Existence:
    """Repositories of one kind that are to be read."""

    check: Check
    kind: RepositoryKind
    noun: str
    """What a user calls them."""
    subject: Subject
    tools: Tools

    def findings(self, references: Sequence[Reference]) -> Iterator[Finding]:
        """Yield what is amiss.

        Raises:
            CannotRun: the Hub did not answer for some.

        """
        silent = Unanswered()
        answered = looked_up(references, self.kind, self.tools, silent)
        missing = [each for each, answer in answered if answer.state in _ABSENT]
        suggestions = {each.name: Suggestions(self.tools.hub, self.kind, each.name) for each in missing}
        for reference, answer in answered:
            if answer.state in _ABSENT:
                yield self._absent(reference, suggestions[reference.name])
            elif answer.state is State.FOUND and answer.repository is not None:
                yield from self._renamed(reference, answer.repository)
            else:
                yield from self._closed(reference, answer)
        silent.tell()

    def _absent(self, reference: Reference, suggestions: Suggestions) -> Finding:
        name, hub, noun = reference.name, self.tools.hub, self.noun
        also = also_at(self.subject, reference)
        unseen = "this token may not see it" if hub.has_token else "no token is set"
        message = f"{name}: there is no such {noun} on the Hub{also}, or it is private and {unseen}"
        if_private = f"; if it is private, {log_in(hub)}, of an account that may see it"
        if (near := suggestions.near()) is not None:
            return self.check.error(reference.place, f"{message}; did you mean {near}?", f'Write "{near}"{if_private}')
        if other := suggestions.is_other_kind():
            what = "data set" if other == "dataset" else other
            return self.check.error(
                reference.place,
                f"{name}: is the name of a {what}, and there is no {noun} of that name{also}",
                f"Name a {noun} here, or use {name} where a {what} is wanted",
            )
        author, _, own = name.rpartition("/")
        if others := suggestions.others():
            shown = ", ".join(others[:MOST_SHOWN])
            more = f" (and {len(others) - MOST_SHOWN} more)" if len(others) > MOST_SHOWN else ""
            fix = f"Take one that {author} has: {shown}{more}{if_private}"
        else:
            whose = f"{author} has none of that kind; correct" if author else "Correct"
            fix = f"{whose} the name, or look for it at {hub.endpoint}/{self.kind}s?search={own}{if_private}"
        return self.check.error(reference.place, message, fix)

    def _renamed(self, reference: Reference, found: Repository) -> Iterator[Finding]:
        if found.id == reference.name:
            return
        same_but_case = found.id.lower() == reference.name.lower()
        what = "is spelled" if same_but_case else "is now called"
        message = f"{reference.name}: this {self.noun} {what} {found.id}{also_at(self.subject, reference)}"
        fix = f'Write "{found.id}"'
        if same_but_case or "/" not in reference.name:  # gpt2 and imdb: short names that the Hub keeps for good
            yield self.check.info(reference.place, message, fix)
        else:
            yield self.check.warning(
                reference.place, f"{message}; the old name works until somebody takes it for something else", fix
            )

    def _closed(self, reference: Reference, answer: Answer) -> Iterator[Finding]:
        """Yield what is said of a repository that is there and cannot be read."""
        name, hub, noun, state = reference.name, self.tools.hub, self.noun, answer.state
        also = also_at(self.subject, reference)
        page = f"{hub.endpoint}/{'datasets/' if self.kind == 'dataset' else ''}{name}"
        if state is State.GATED and "fine-grained" in answer.detail.lower():
            yield self.check.error(
                reference.place, f"{name}: this {noun} is gated, and the token has no right to read what is{also}",
                f"Tick `Read access to contents of all public gated repos you can access` at {hub.endpoint}/settings/tokens",
            )  # fmt: skip
        elif state is State.GATED and hub.has_token:
            yield self.check.error(
                reference.place, f"{name}: this {noun} is gated, and the account of this token has no access to it{also}",
                f"Open {page} with that account and accept the terms; where access is given by hand, wait for it",
            )  # fmt: skip
        elif state is State.GATED:
            yield self.check.error(
                reference.place, f"{name}: this {noun} is gated, and no token is set{also}",
                f"Open {page}, accept the terms, then {log_in(hub)}",
            )  # fmt: skip
        elif state is State.FORBIDDEN:
            yield self.check.error(
                reference.place, f"{name}: the token may not read this {noun} (403){also}",
                f"Give the token the right to read it at {hub.endpoint}/settings/tokens",
            )  # fmt: skip
        elif state is State.DISABLED:
            yield self.check.error(
                reference.place, f"{name}: this {noun} has been disabled on the Hub{also}", f"Take another; {page} says why"
            )  # fmt: skip
