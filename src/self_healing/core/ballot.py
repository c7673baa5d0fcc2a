"""What ranks tell each other in a vote: a header of a fixed number of whole numbers, and a wish as text.

A header is the same size on every rank whatever there is to say, so that one small gather brings all of them to all. A
wish is text, and is only gathered where some header says that there is one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import median
from typing import Any, Self

from .action import Action
from .errors import RanksParted
from .plan import Plan, plan_from_json

VERSION = 1
MOST_STATES = 8
"""Steps of kept states that a header has room for, the newest ones."""
_NONE = -1
_FIXED = 10
"""Numbers of a header besides those of its states."""
HEADER_LENGTH = _FIXED + MOST_STATES


class Round(IntEnum):
    """What a gather is for; all ranks are at the same one, or they have parted."""

    VOTE = 1
    """Who has a wish, when the next state is to be taken, which states there are."""
    COMMIT = 2
    """Whether all have understood the same plan."""
    OUTCOME = 3
    """Whether all could carry it out."""
    FAILED = 4
    """An exception has left the step here, and this rank asks whether it has on all."""


_ROUNDS = frozenset(Round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one rank says in one round."""

    round: Round
    number: int
    """Rounds before this one: ranks that have gathered a different number of times are found out."""
    step: int
    acts: bool = True
    """Whether this rank may carry plans out: the mode is read by each process for itself."""
    size: int = 0
    """Bytes of its wish; 0 where it has none."""
    next_state: int | None = None
    """The step at which it would take the next state; None where it can keep none."""
    step_time_us: int = 0
    """What a step took it lately, without the time that it waited for others; 0 where that is not known."""
    has_failed: bool = False
    """Whether the last plan could not be carried out here."""
    digest: int = 0
    """A number that two plans share only if they are the same; 0 where there is none."""
    states: tuple[int, ...] = ()
    """Steps of the states it can return to."""

    def to_numbers(self) -> list[int]:
        """Return the header as it is gathered."""
        newest = sorted(self.states)[-MOST_STATES:]
        return [
            VERSION, self.round, self.number, self.step, int(self.acts), self.size,
            _NONE if self.next_state is None else self.next_state, self.step_time_us, int(self.has_failed), self.digest,
            *newest, *[_NONE] * (MOST_STATES - len(newest)),
        ]  # fmt: skip

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Self:
        """Return the header that was gathered.

        Raises:
            RanksParted: it is of another version of this package, or none at all.

        """
        if len(numbers) != HEADER_LENGTH or numbers[0] != VERSION or numbers[1] not in _ROUNDS:
            raise RanksParted(f"another rank speaks another language: {list(numbers)[:_FIXED]}")
        _, kind, number, step, acts, size, next_state, step_time_us, has_failed, digest = numbers[:_FIXED]
        return cls(
            round=Round(kind), number=number, step=step, acts=bool(acts), size=size,
            next_state=None if next_state < 0 else next_state, step_time_us=step_time_us, has_failed=bool(has_failed),
            digest=digest, states=tuple(each for each in numbers[_FIXED:] if each >= 0),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tally:
    """What all ranks have said in one round, and what follows from it: the same on every rank."""

    headers: tuple[Header, ...]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]], own: Header) -> Self:
        """Read what was gathered.

        Raises:
            RanksParted: some rank is in another round or at another step; nothing they do together is sound any more.

        """
        headers = tuple(Header.of_numbers(numbers) for numbers in answers)
        where = (own.round, own.number, own.step)
        others = [rank for rank, each in enumerate(headers) if (each.round, each.number, each.step) != where]
        if others:
            told = "; ".join(
                f"rank {rank}: {headers[rank].round.name.lower()} {headers[rank].number} at step {headers[rank].step}"
                for rank in others[:8]
            )
            raise RanksParted(
                f"the ranks are not at the same place: this one is at {own.round.name.lower()} {own.number} "
                f"at step {own.step}, {told}",
                ranks=tuple(others),
            )
        return cls(headers)

    @property
    def has_wishes(self) -> bool:
        """Say whether anybody has a wish."""
        return any(each.size for each in self.headers)

    @property
    def acts(self) -> bool:
        """Say whether all may carry plans out: what only some do would part them."""
        return all(each.acts for each in self.headers)

    @property
    def agrees(self) -> bool:
        """Say whether all have the same plan before them."""
        return len({each.digest for each in self.headers}) == 1 and self.headers[0].digest != 0

    @property
    def failed(self) -> tuple[int, ...]:
        """Return the ranks that could not carry out the plan."""
        return tuple(rank for rank, each in enumerate(self.headers) if each.has_failed)

    @property
    def next_state(self) -> int | None:
        """Return the step at which all take the next state: when the last one would; None where one of them cannot."""
        steps = [each.next_state for each in self.headers]
        known = [step for step in steps if step is not None]
        return max(known) if len(known) == len(steps) else None

    @property
    def states(self) -> tuple[int, ...]:
        """Return the steps of the states that every rank holds, oldest first: only these can be returned to."""
        shared = set(self.headers[0].states).intersection(*(each.states for each in self.headers[1:]))
        return tuple(sorted(shared))

    def slowest(self) -> tuple[int, float] | None:
        """Return the rank whose steps took longest, and how many times the median of the others that was."""
        times = [each.step_time_us for each in self.headers]
        if len(times) < 2 or min(times) <= 0:
            return None
        rank = max(range(len(times)), key=lambda each: times[each])
        return rank, times[rank] / median(times[:rank] + times[rank + 1 :])


def wish_as_text(plan: Plan, *, by_hook: bool, actions: Mapping[str, type[Action]]) -> str:
    """Return a plan as other ranks can read it.

    Raises:
        ValueError: it holds an action that other processes could not find by its name.

    """
    found = {}
    for action in plan.actions:
        kind = type(action)
        if actions.get(action.name()) is kind:
            continue
        place = f"{kind.__module__}:{kind.__qualname__}"
        if _class_at(place) is not kind:
            raise ValueError(f"the action {action.name()} ({place}) cannot be imported by other processes")
        found[action.name()] = place
    body = {**plan.to_json(), "step": plan.step, "rank": plan.rank}
    return json.dumps({"plan": body, "by_hook": by_hook, "own": found}, sort_keys=True)


def wish_from_text(text: str, actions: Mapping[str, type[Action]]) -> tuple[Plan, bool]:
    """Return a plan that another rank wishes for, and whether a user's hook has made it.

    Raises:
        ValueError: it cannot be understood here.

    """
    try:
        told = json.loads(text)
        own = {name: _class_at(place) for name, place in told["own"].items()}
        unknown = [name for name, kind in own.items() if kind is None]
        if unknown:
            raise ValueError(f"no such action here: {', '.join(unknown)}")  # noqa: TRY301  # told as all others are
        return plan_from_json(_tuples(told["plan"]), {**actions, **own}), bool(told["by_hook"])  # type: ignore[dict-item]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def with_rank(plan: Plan, rank: int) -> Plan:
    """Return the plan as the wish of a rank."""
    return plan if plan.rank == rank else replace(plan, rank=rank)


def digest_of(plan: Plan) -> int:
    """Return a positive number by which two processes know that they mean the same plan."""
    canonical = json.dumps([plan.step, plan.rank, plan.to_json()], sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:7], "big") + 1


def _class_at(place: str) -> type[Action] | None:
    """Return the class at `module:name`; every rank runs the same script, so that `__main__` is as good as any."""
    module, _, names = place.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, Action) else None


def _tuples(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's body with the tuples that JSON has made lists of, so that equal plans compare equal."""
    actions = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in action.items()}
        for action in body["actions"]
    ]
    return {**body, "actions": actions}
