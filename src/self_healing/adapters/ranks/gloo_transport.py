"""Votes over the side group."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from ...core.voting import Message
from .side_group import SideGroup

T = TypeVar("T")


class GlooTransport:
    """Brings what all ranks say to all ranks."""

    def __init__(self, group: SideGroup) -> None:
        self.group = group

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
