"""What a session of one rank needs of the others: votes at fixed steps, and the check that they are still there.

A session joins once, when training begins, on all ranks; says at the end of each step that it has ended; and closes. All of
it is `None` where there is one process, and nothing is different then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Self

from ...core.action import Action
from ...core.discover import discover_classes
from ...core.errors import ExitCode, RanksParted
from ...core.run_directory import healing_folder
from ...core.voting import VOTE_EVERY, Decision, Report, Voting
from ...detectors.rank_straggling import RATIO, SLOWEST
from ..ending.exit_codes import end_with
from .collective_check import CollectiveCheck
from .gloo_transport import GlooTransport
from .side_group import PATIENCE_S, SideGroup

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ..run.run_desk import RunDesk


@dataclass(kw_only=True)
class States:
    """What a session says of the states it keeps; the defaults are those of one that keeps none."""

    next_step: Callable[[], int | None] = lambda: None
    """The step at which this rank's own schedule would take the next one."""
    steps: Callable[[], Sequence[int]] = tuple
    """Steps of the states that could be returned to."""


@dataclass
class RanksOfRun:
    """The other ranks of a run, as the session of one sees them."""

    desk: RunDesk
    group: SideGroup
    transport: GlooTransport
    voting: Voting
    states: States
    check: CollectiveCheck | None = None
    _took_s: list[float] = field(default_factory=list)
    _figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def join(
        cls,
        desk: RunDesk,
        config: HealingConfig,
        *,
        acts: bool,
        states: States | None = None,
        every: int = VOTE_EVERY,
        patience_s: float = PATIENCE_S,
    ) -> Self | None:
        """Meet the others, on all ranks at the same moment; None where there is one process.

        Args:
            desk: Of the session, open: wishes are kept for votes from now on where this rank `acts`.
            config: The user's.
            acts: Whether plans may be carried out, and a hang be left; the same on all ranks, or nobody does.
            states: What the session says of the states it keeps.
            every: Steps from one vote to the next.
            patience_s: How long a vote waits for somebody.

        """
        group = SideGroup.join(patience_s=patience_s)
        if group is None:
            return None
        actions = discover_classes("self_healing.actions", Action)
        voting = Voting(
            desk.healer, rank=group.rank, actions=actions, acts=acts, every=every, done=desk.was_done, note=desk.note
        )
        ranks = cls(desk, group, GlooTransport(group), voting, states or States())
        ranks.check = CollectiveCheck.join(
            group, config.collective_check_interval_s, folder=healing_folder(desk.args.output_dir), step=desk.step,
            tell=desk.note, leave=ranks.leave if acts else None,
        )  # fmt: skip
        if acts:
            desk.voting = voting
        return ranks

    def step_ended(self, step: int, *, took_s: float = 0.0) -> Decision | None:
        """Vote where it is time; call it at the end of every step, when all that is known of it was looked at.

        `took_s` is what the step took this rank without waiting for others: in a loop that synchronises, all steps take
        all ranks the same time. Returns None where there was no vote.

        Raises:
            RanksParted: somebody has not come, or is elsewhere; uncaught it ends the process with code 76.

        """
        self._took_s.append(took_s)
        return self.vote(step) if self.voting.is_time(step) else None

    def vote(self, step: int) -> Decision:
        """Vote at once, at a place that all ranks know they have come to.

        Raises:
            RanksParted: somebody has not come, or is elsewhere; uncaught it ends the process with code 76.

        """
        report = Report(
            step=step, next_state=self.states.next_step(), states=tuple(self.states.steps()),
            step_time_s=median(self._took_s or [0.0]),
        )  # fmt: skip
        self._took_s.clear()
        try:
            decision = self.transport.carry(self.voting.vote(report, self.desk.abilities, time.perf_counter))
        except RanksParted as error:
            end_with(error, ExitCode.STALLED)
            raise
        slowest = decision.tally.slowest()
        if slowest is not None:
            self._figures = {SLOWEST: float(slowest[0]), RATIO: slowest[1]}
        return decision

    def take_figures(self) -> dict[str, float]:
        """Return what the last vote has shown, once: for the metrics of the next step."""
        figures, self._figures = self._figures, {}
        return figures

    def begins_at(self, step: int) -> None:
        """Take note that all are at a step whose state is taken or kept: training begins there, or has returned to it."""
        self.voting.begins_at(step)
        self._took_s.clear()

    def have_all_failed(self, step: int, *, within_s: float) -> bool:
        """Say whether an exception has left this step on every rank, so that all may try it again.

        Where it has not, the others sit in a collective of the training, whose group is lost with this rank: nothing but a
        new start of all helps. No rank may start a collective of the training before it knows.
        """
        if self.check is not None:
            self.check.only_tells()  # this thread does not hang, and may be saving what there is
        try:
            have_all = self.transport.carry(self.voting.have_all_failed(step), within_s=within_s)
        except RanksParted as error:
            self.desk.note("failed-alone", f"the other ranks have not failed in this step: {error}")
            return False
        if have_all and self.check is not None:
            self.check.leaves_again()
        return have_all

    def leave(self, why: str) -> None:
        """End this process from the thread of the check: the one that trains hangs, and could not be ended otherwise."""
        desk = self.desk
        try:
            desk.note("hang", why)
            desk.ended("hang", None, {})
            desk.heart.stop()
            desk.alerts.flush(1.0)
            desk.opened.close()
        finally:
            os._exit(ExitCode.STALLED)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the others, in good order or with an error; none of them is needed for it. What is wished now is not done."""
        if self.check is not None:
            self.check.stop(f"{type(error).__name__}: {error}" if error is not None else "")
            self.check = None
        self.group.close()
