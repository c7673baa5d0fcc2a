"""Finds out within seconds which rank has stopped answering, instead of the many minutes after which torch gives up.

A collective cannot tell who does not come to it: on all ranks but one it only knows that it waits, and a thread that waits
in one can be ended by nobody. So no collective is used. A thread of every rank sends a beat (`beats.py`), rank 0 hears
all of them, and everybody hears from rank 0 who is missing; where it is rank 0 itself, its answers are. A process of the
same machine is looked at as well: one that is gone is named at once, and of one that is stopped the stack is had from
outside. The thread that trains does nothing for any of it.

Being named has no consequence for a run that gets on: training has to stand still on this rank too, and the other one must
be known to be gone or stopped, or silent for twice as long. Then this process leaves, for a launcher to start all again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from ...core.attendance import Absence, Attendance
from .beats import Beats
from .neighbours import Neighbours, own_card
from .side_group import SideGroup
from .standing import save_standing, stack_of

logger = logging.getLogger("self_healing.ranks")

_JOIN_S = 2.0
_MOST_TOLD = 16
"""Absent ranks that an answer names."""
_GOODBYES = 3
"""How often the last message is sent: nobody asks for one that was lost."""


class CollectiveCheck:
    """One rank's part: beats, listens, and says who does not answer."""

    def __init__(
        self,
        beats: Beats,
        neighbours: Neighbours,
        *,
        rank: int,
        world_size: int,
        interval_s: float,
        folder: Path,
        step: Callable[[], int],
        tell: Callable[[str, str], None],
        leave: Callable[[str], None] | None,
    ) -> None:
        """Take what is listened to.

        Args:
            beats: The end of this rank.
            neighbours: The ranks of the same machine.
            rank: This rank.
            world_size: How many there are.
            interval_s: The user's `collective_check_interval_s`.
            folder: Where stacks are written to.
            step: Returns the step that training is at.
            tell: Writes a remark, by its name and its text; called from the thread of the check.
            leave: Ends this process, with why; None where a hang is only told of.

        """
        self._beats, self._neighbours = beats, neighbours
        self.rank = rank
        self._folder, self._step, self._tell, self._leave = folder, step, tell, leave
        self._leaves = leave is not None
        self.attendance = Attendance(interval_s, time.monotonic())
        self.attendance.expect(range(1, world_size) if rank == 0 else [0])
        self._count = 0
        self._absent: tuple[Absence, ...] = ()
        self._told: set[tuple[int, str]] = set()
        self._senders: dict[int, Any] = {}
        """On rank 0: where the others have written from."""
        self._moved = (-1, time.monotonic())
        """The step training was last seen at, and since when."""
        self._has_heard = rank == 0
        """Whether rank 0 has answered at all: where nothing gets through, silence means nothing."""
        self._training = threading.get_ident()
        self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="self-healing-ranks", daemon=True)

    @classmethod
    def join(cls, group: SideGroup, interval_s: float, **more: Any) -> Self | None:
        """Begin to listen, on all ranks at the same moment; None where it is switched off or has no way to."""
        beats, told = Beats.listening() if group.rank == 0 else (None, {})
        cards = [
            json.loads(text) for text in group.exchange_texts(json.dumps({**own_card(), **told, "every": interval_s}))
        ]
        first, here = cards[0], cards[group.rank]
        if (
            not all(card["every"] == interval_s for card in cards) or not interval_s
        ):  # each process reads its own configuration
            if beats is not None:
                beats.close()
            if interval_s:
                more["tell"]("no-collective-check", "the ranks have different collective_check_interval_s: none checks")
            return None
        if beats is None:
            is_same = (first["host"], first["space"]) == (here["host"], here["space"])
            try:
                beats = Beats.writing_to(first, is_same_machine=is_same)
            except OSError as error:
                more["tell"]("no-collective-check", f"rank 0 cannot be written to from here: {error}")
                return None
        check = cls(
            beats, Neighbours(cards, group.rank), rank=group.rank, world_size=group.world_size, interval_s=interval_s, **more
        )  # fmt: skip
        group.silent_ranks = check.silent_ranks
        check._thread.start()
        return check

    def silent_ranks(self) -> tuple[int, ...]:
        """Return who is known not to answer."""
        return tuple(each.rank for each in self._absent)

    def only_tells(self) -> None:
        """End this process for nobody: its training is not in a step."""
        self._leaves = False

    def leaves_again(self) -> None:
        """End this process where it waits in vain: it trains again."""
        self._leaves = True

    def stop(self, error: str = "") -> None:
        """Say goodbye: this rank ends, in good order or with an error, and is not waited for."""
        if self._thread.is_alive():
            os.write(self._waker[1], b"x")
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                return  # it writes stacks to a disk that does not answer
        goodbye = self._said(ended=True, error=error[:300]) | {"count": self._count + 1, "absent": []}
        for _ in range(_GOODBYES):
            for sender in self._senders.values() if self.rank == 0 else (None,):
                self._beats.send(goodbye, sender)
        self._beats.close()
        for descriptor in self._waker:
            os.close(descriptor)
        self._waker = (-1, -1)

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        attendance = self.attendance
        while True:
            self._count += 1
            if self.rank:
                self._beats.send(self._said())
            for message, sender in self._beats.hear(attendance.tick_s, self._waker[0]):
                self._take(message, sender)
            if self._is_woken():
                return
            now_s = time.monotonic()
            attendance.look(now_s)
            for rank in self._neighbours.ranks if self.rank == 0 else (0,):
                attendance.seen(rank, self._neighbours.state_of(rank))
            self._judge(now_s)

    def _is_woken(self) -> bool:
        import select

        return bool(select.select([self._waker[0]], [], [], 0)[0])

    def _said(self, *, ended: bool = False, error: str = "") -> dict[str, Any]:
        return {
            "rank": self.rank, "count": self._count, "step": self._step(), "stack": stack_of(self._training),
            "ended": ended, "error": error,
        }  # fmt: skip

    def _take(self, message: dict[str, Any], sender: Any) -> None:
        """Take in a beat, which rank 0 answers with who is missing."""
        rank, now_s = int(message["rank"]), time.monotonic()
        self.attendance.hear(
            rank, count=int(message["count"]), step=int(message["step"]), now_s=now_s, stack=str(message["stack"])
        )
        if message["ended"]:
            self.attendance.ended(rank, str(message["error"]))
        if self.rank == 0:
            self._senders[rank] = sender
            self._beats.send({**self._said(), "absent": [asdict(each) for each in self._absent[:_MOST_TOLD]]}, sender)
            return
        self._has_heard = True
        self._absent = tuple(
            Absence(**{**told, "why": self._neighbours.state_of(told["rank"]) or told["why"]})
            for told in message["absent"]
            if told["rank"] != self.rank  # it is here: it was stopped itself, and goes on
        )

    def _judge(self, now_s: float) -> None:
        """Say who is missing, and leave where waiting for them is in vain."""
        if self.rank == 0:
            self._absent = self.attendance.absent(now_s)
        elif self._has_heard:
            first = self.attendance.absent(now_s)
            if first:  # nobody else is known of without rank 0
                self._absent = first
            elif self.attendance.has_ended(0):
                self._absent = ()
        news = [each for each in self._absent if (each.rank, each.why) not in self._told]
        if news:
            self._told |= {(each.rank, each.why) for each in news}
            self._report(news)
        step = self._step()
        if step != self._moved[0]:
            self._moved = (step, now_s)
        stands_s, leave = now_s - self._moved[1], self._leave
        if leave is None or not self._leaves or stands_s < self.attendance.interval_s:
            return
        hopeless = [each for each in self._absent if self.attendance.is_certain(each)]
        if hopeless:
            told = "; ".join(each.sentence for each in hopeless[:8])
            leave(f"step {step} has not ended for {stands_s:.0f} s, and waits in vain: {told}")

    def _report(self, news: Sequence[Absence]) -> None:
        told = "; ".join(each.sentence for each in news[:8])
        self._tell("rank-absent", told)
        stood = "\n".join(
            f"rank {each.rank} stood in\n  {each.stack.replace(chr(10), chr(10) + '  ')}" for each in news if each.stack
        )
        if stood:
            self._tell("rank-absent-stood", stood)
        where = [save_standing(self._folder, self.rank)]
        where.append(self._neighbours.save_stacks_of([each.rank for each in news], self._folder))
        self._tell("rank-absent-stacks", "; ".join(filter(None, where)))
