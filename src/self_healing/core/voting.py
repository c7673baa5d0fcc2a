"""Ranks decide together: wishes are collected as they arise, and voted on at steps that all ranks know in advance.

What a rank observes is its own, so that ranks wish at different moments and different numbers of times. A gather at each
wish would have them wait for each other for ever. So nothing is gathered when something is wished: every rank calls
`vote` at the same steps (`is_time`), whether it wishes for anything or not, and everything that is gathered within one
vote follows from what was gathered before it.

A vote is a generator. It yields what is to be gathered (numbers, or a text) and is sent what all ranks have yielded, so
that nothing here knows how that is done, and a test can run a thousand ranks in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .action import Action
from .ballot import Header, Round, Tally, digest_of, wish_as_text, wish_from_text, with_rank
from .errors import RanksParted
from .failure import Effect
from .healer import Healer
from .plan import ActionResult, Outcome, Plan, merge

VOTE_EVERY = 8
"""Steps from one vote to the next."""

Message = list[int] | str
Vote = Generator[Message, Sequence[Any], "Decision"]
"""Yields what this rank says; is sent what all ranks have said, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a rank brings to a vote besides its wish."""

    step: int
    next_state: int | None = None
    """The step at which its own schedule would take the next state; None where it keeps none."""
    states: tuple[int, ...] = ()
    """Steps of the states it can return to."""
    step_time_s: float = 0.0
    """What a step took it lately, without waiting for others."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a vote came to: the same on every rank."""

    tally: Tally
    """What all ranks brought to it."""
    plans: tuple[Plan, ...] = ()
    """The plans that were carried out, one after the other."""

    @property
    def takes_state(self) -> bool:
        """Say whether the state of this step is to be taken, by all ranks."""
        due = self.tally.next_state
        return due is not None and due <= self.tally.headers[0].step


class Voting:
    """One rank's part in the votes of a run."""

    def __init__(
        self,
        healer: Healer,
        *,
        rank: int,
        actions: Mapping[str, type[Action]],
        acts: bool = True,
        every: int = VOTE_EVERY,
        done: Callable[[Outcome], None] | None = None,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        """Take part.

        Args:
            healer: Decides what this rank wishes.
            rank: This rank.
            actions: The catalogue by which the others' wishes are read.
            acts: Whether this rank may carry plans out.
            every: Steps from one vote to the next; the same on all ranks.
            done: Is told what each plan came to.
            note: Writes a remark, by its name and its text.

        """
        self.healer = healer
        self.rank = rank
        self.acts = acts
        self.every = every
        self._actions = actions
        self._done = done
        self._note = note
        self._rounds = 0
        healer.care.waits_for_votes = acts
        self._wish: Plan | None = None
        self._next_state: int | None = None
        self.states: tuple[int, ...] = ()
        """Steps of the states that every rank held at the last vote."""

    def wish(self, plan: Plan | None) -> None:
        """Keep what this rank wishes until the next vote; of two wishes the more urgent one."""
        if plan is None:
            return
        before = self._take()
        self._wish = merge([before, plan])
        for other in (before, plan):
            if other is not None and other != self._wish:
                self._not_granted(other, ask_again=True)

    def is_time(self, step: int) -> bool:
        """Say whether all ranks vote at the end of this step: every few steps, and where a state is to be taken."""
        return step % self.every == 0 or step == self._next_state

    def begins_at(self, step: int) -> None:
        """Take note that all are at a step, with its state taken: at the next one it is known when to take another."""
        self._next_state = step + 1

    def vote(self, report: Report, run: object, clock: Callable[[], float]) -> Vote:
        """Decide with all ranks what is done at this step, and do it; a failed plan is followed by the next at once."""
        first, plan, by_hook = yield from self._ballot(report, self._granted(self._take(), run))
        plans: list[Plan] = []
        while plan is not None:
            plans.append(plan)
            outcome = yield from self._done_by_all(report, self.healer.attempt(plan, run, clock))
            owed = len(self.healer.care.undos.owed_at(report.step))
            self.healer.conclude(outcome, by_hook=by_hook)
            if self._done is not None:
                self._done(outcome)
            if not outcome.succeeded:
                self._take_back(self.healer.care.undos.owed_at(report.step)[owed:], run, clock)
            self.wish(self.healer.next_plan(outcome))
            _, plan, by_hook = yield from self._ballot(report, self._granted(self._take(), run))
        due = first.next_state
        # When the one after this is worth it is known as soon as this one was taken.
        self._next_state = report.step + 1 if due is not None and due <= report.step else due
        self.states = first.states
        return Decision(first, tuple(plans))

    def have_all_failed(self, step: int) -> Generator[Message, Sequence[Any], bool]:
        """Ask whether an exception has left the step on every rank; where one does not come, the gather runs out of time."""
        yield from self._say(Header(round=Round.FAILED, number=self._rounds, step=step))
        return True

    # -- the rounds of a vote ------------------------------------------------------------------------

    def _ballot(
        self, report: Report, wish: tuple[Plan, str] | None
    ) -> Generator[Message, Sequence[Any], tuple[Tally, Plan | None, bool]]:
        """Bring all wishes together; return what all say, and the plan for all with whether a hook has made it."""
        own, text = wish if wish is not None else (None, "")
        tally = yield from self._say(
            Header(
                round=Round.VOTE, number=self._rounds, step=report.step, acts=self.acts, size=len(text.encode()),
                next_state=report.next_state, states=report.states, step_time_us=round(report.step_time_s * 1e6),
            )
        )  # fmt: skip
        self.states = tally.states  # a plan that is about to be carried out may return to one of them
        if not tally.has_wishes:
            return tally, None, False
        texts: Sequence[str] = yield text
        agreed, by_hook, why = self._read(texts)
        digest = 0 if agreed is None else digest_of(agreed)
        commit = yield from self._say(Header(round=Round.COMMIT, number=self._rounds, step=report.step, digest=digest))
        if commit.agrees and tally.acts:
            if own is not None and digest_of(own) != digest:
                self._not_granted(own, ask_again=True)
            return tally, agreed, by_hook
        if own is not None:
            self._not_granted(own, ask_again=False)
        if not commit.agrees:
            lost = [str(rank) for rank, each in enumerate(commit.headers) if not each.digest]
            told = f" (here: {why})" if why else ""
            self._tell("plan-not-agreed", f"nothing is done: the ranks {', '.join(lost)} do not understand it{told}")
        return tally, None, False

    def _done_by_all(self, report: Report, outcome: Outcome) -> Generator[Message, Sequence[Any], Outcome]:
        """Return what a plan came to on all ranks together: what has failed on one counts as failed on each."""
        done = sum(result.status == "done" for result in outcome.results)
        told = yield from self._say(
            Header(
                round=Round.OUTCOME, number=self._rounds, step=report.step, size=done, has_failed=not outcome.succeeded,
            )
        )  # fmt: skip
        sizes = [each.size for each in told.headers]
        # Done by some and not by others: the same on all ranks.
        parting = [each for each in outcome.plan.actions[min(sizes) : max(sizes)] if each.effect > Effect.NOTHING]
        for action in parting:
            if outcome.plan.is_undo or action.undo() is None:
                raise RanksParted(
                    f"{action.name()} was not done by rank {told.failed} and cannot be taken back by the others"
                )
        if not told.failed or not outcome.succeeded:
            return outcome
        ranks = ", ".join(map(str, told.failed))
        failed = ActionResult(action="vote", status="failed", text=f"could not be carried out by rank {ranks}")
        return replace(outcome, results=(*outcome.results, failed))

    def _take_back(self, undos: Sequence[Plan], run: object, clock: Callable[[], float]) -> None:
        """Take back what this rank has done of a plan that has failed: others may have done less of it, so nobody votes."""
        for undo in undos:
            outcome = self.healer.attempt(undo, run, clock)
            self.healer.conclude(outcome, by_hook=False)
            if not outcome.succeeded:
                raise RanksParted(f"{undo.rung} has failed on this rank, which is not like the others any more")

    def _say(self, header: Header) -> Generator[Message, Sequence[Any], Tally]:
        self._rounds += 1
        answers = yield header.to_numbers()
        return Tally.of(answers, header)

    # -- wishes --------------------------------------------------------------------------------------

    def _take(self) -> Plan | None:
        """Return what this rank wishes, unless what it answers has passed or got worse since."""
        wish, self._wish = self._wish, None
        return wish if wish is not None and self.healer.care.stands(wish) else None

    def _granted(self, wish: Plan | None, run: object) -> tuple[Plan, str] | None:
        """Ask the user's hooks, which are those of this rank, before the others hear of a wish."""
        granted = None if wish is None else self.healer.grant(wish, run)
        if wish is None or granted is None:
            return None
        told = with_rank(granted, self.rank)
        try:
            return told, wish_as_text(told, by_hook=granted is not wish, actions=self._actions)
        except (TypeError, ValueError) as error:
            self.healer.care.wish_not_granted(wish, ask_again=False)
            self._tell(
                "plan-not-told", f"{wish.rung} for {wish.incident} is not done, since other ranks cannot: {error}"
            )
            return None

    def _read(self, texts: Sequence[str]) -> tuple[Plan | None, bool, str]:
        """Return the plan that follows from all wishes, whether a hook has made it, and what was not understood."""
        try:
            wishes = [wish_from_text(text, self._actions) for text in texts if text]
        except ValueError as error:
            return None, False, str(error)
        agreed = merge(plan for plan, _ in wishes)
        return agreed, any(by_hook for plan, by_hook in wishes if plan == agreed), ""

    def _not_granted(self, wish: Plan, *, ask_again: bool) -> None:
        if not wish.is_undo:  # which is owed until it was done, and no incident waits for it
            self.healer.care.wish_not_granted(wish, ask_again=ask_again)

    def _tell(self, name: str, text: str) -> None:
        if self._note is not None:
            self._note(name, text)
