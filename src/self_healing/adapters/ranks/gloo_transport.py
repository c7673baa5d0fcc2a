"""Wishes and votes over the side group."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from ...core.action import Action
from ...core.ballot import wish_as_text, wish_from_text
from ...core.errors import RanksParted
from ...core.plan import Plan
from ...core.voting import Message
from .side_group import SideGroup

T = TypeVar("T")


class GlooTransport:
    """Brings what all ranks say to all ranks; a `Transport` for whoever calls `Healer.agree` on all ranks at the same moments."""

    def __init__(self, group: SideGroup, actions: Mapping[str, type[Action]]) -> None:
        self.group = group
        self._actions = actions

    def gather(self, wish: Plan | None) -> Sequence[Plan | None]:
        """Return every rank's wish; all ranks call this at the same step boundary."""
        text = "" if wish is None else wish_as_text(wish, by_hook=False, actions=self._actions)
        try:
            return [
                wish_from_text(each, self._actions)[0] if each else None for each in self.group.exchange_texts(text)
            ]
        except ValueError as error:
            raise RanksParted(f"a wish of another rank is not understood here: {error}") from error

    def carry(self, vote: Generator[Message, Sequence[Any], T], *, within_s: float | None = None) -> T:
        """Hold a vote: bring to all ranks what this one yields, and send it what all have."""
        try:
            message = next(vote)
            while True:
                answers: Sequence[Any]
                if isinstance(message, str):
                    answers = self.group.exchange_texts(message)
                else:
                    answers = self.group.exchange(message, within_s=within_s)
                message = vote.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result
