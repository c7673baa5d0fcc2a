"""The other processes of a loop: all of them decide, take states, return, save and end at the same steps.

Everything is decided from what all have said in a vote (`ranks/`), so that no process does anything the others do not. Where
there is one process nothing here is different from a loop by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.errors import RanksParted
from ...snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict
from ..ending.leaving import SICK
from ..ranks.session_ranks import SessionRanks
from ..rollback.left_out import left_out_of
from ..rollback.shared_states import place_of

if TYPE_CHECKING:
    from ...core.voting import Decision
    from ..ranks.sharded_checkpoint import ShardedCheckpoints
    from ..ranks.side_group import SideGroup
    from .session import PlainSession

NOT_TOGETHER = "no emergency checkpoint: every process must take part in saving, and the others do not know of it"


class LoopRanks(SessionRanks):
    """The other processes, as the session of one sees them."""

    def __init__(self, session: PlainSession) -> None:
        super().__init__(is_one_of_several=session.surroundings.is_one_of_several)
        self._session = session
        self._saver: ShardedCheckpoints | None = None
        self._last_noted: Any = None
        self._verdict = NOT_JUDGED
        """What is thought of the checkpoint that is being written."""
        self.is_agreed = False
        """All processes are at this place, and know it."""

    @property
    def group(self) -> SideGroup:
        """The group over which they talk."""
        assert self._ranks is not None, "the others were met"
        return self._ranks.group

    def close(self, error: BaseException | None) -> None:
        """Leave the others, in good order or with an error."""
        saver, self._saver = self._saver, None
        if saver is not None and error is None:
            self._note_saved(saver)
        super().close(error)

    # -- steps ---------------------------------------------------------------------------------------

    def step_ended(self, took_s: float) -> None:
        """Vote where it is time; what was decided is carried out before the next step, by all."""
        self._come_to(partial(self._vote, self._session.desk, took_s))

    def epoch_ended(self) -> None:
        """Vote on what was seen since the last vote: after the last epoch there is no other."""
        self._come_to(partial(self._vote_now, self._session.desk))

    def vote_now(self) -> None:
        """Vote at once, at a place that all have come to for the same reason."""
        self._vote_now(self._session.desk)

    def _come_to(self, vote: Callable[[], Decision | None]) -> None:
        session = self._session
        try:
            decision = vote()
            if decision is None:
                return
            ends = self._hear_of_signals()
        except RanksParted as error:
            session.end("exception", error)
            raise
        if decision.takes_state or ends or session.pending.asked is not None:
            session.know_everything()

    def have_all_failed(self, within_s: float) -> bool:
        """Say whether the step has failed on every rank, so that all may do it again."""
        if self._ranks is None:
            return False
        return self._ranks.have_all_failed(self._session.desk.step(), within_s=within_s)

    def _hear_of_signals(self) -> bool:
        """Find out whether some process was asked to end: then all do."""
        session = self._session
        received = session.interrupts.received
        if received is not None and session.interrupts.is_warning(received):
            received = None
        came = max(number for (number,) in self.group.exchange([int(received or 0)]))
        if not came:
            return False
        session.interrupts.received = signal.Signals(came)
        self.is_agreed = True
        return True

    # -- saving --------------------------------------------------------------------------------------

    def save(self, *, wait: bool, as_it_is: bool = False) -> str:
        """Write a checkpoint of this step, all of them together; training goes on meanwhile unless it is to wait.

        One whose weights are not finite is only written `as_it_is`, and is marked sick; so is one that somebody's trouble
        began before.
        """
        from ..ranks.sharded_checkpoint import ShardedCheckpoints

        session, stand_in = self._session, self._session.trainer
        step, returns = session.desk.step(), session.returns
        self.finish_writing()
        is_finite, verdict = self._judged()
        if not is_finite and not as_it_is:
            return "the weights are not finite, no checkpoint was written"
        if self._saver is None:
            self._saver = ShardedCheckpoints(stand_in.args.output_dir)
        self._verdict = verdict
        place = None
        if returns.is_in_epochs:
            told = place_of(returns.place_now(), left_out_of(returns.data))
            place = {**told, "is_between": returns.is_between}
        data = {
            "place": place,
            "accumulate": int(stand_in.current_gradient_accumulation_steps),
            "world_size": stand_in.args.world_size,
        }
        own = {"place": place, "also": [thing.state_dict() for thing in session.also]}
        self._saver.save(
            step, stand_in.model, stand_in.optimizer, scheduler=stand_in.lr_scheduler,
            scaler=getattr(stand_in.accelerator, "scaler", None), data=data, own=own, wait=wait, verdict=verdict,
        )  # fmt: skip
        if wait:
            self.finish_writing()
        said = f"checkpoint-{step} is written by all {stand_in.args.world_size} processes"
        return said if is_finite else f"{said} as it is: {SICK}"

    def _judged(self) -> tuple[bool, StateVerdict]:
        """Say whether the weights of all are finite, and what is thought of the state of this moment by those who know most."""
        session = self._session
        assert session.checkpoints is not None, "who may not act does not save together"
        is_finite = session.weights_are_finite()
        own = session.checkpoints.judged_now(is_finite=is_finite)
        found = self.group.exchange([int(is_finite), int(own.is_sick)])
        sick = [rank for rank, (_, is_sick) in enumerate(found) if is_sick]
        if sick and not own.is_sick:
            own = StateVerdict(Condition.SICK, f"rank {sick[0]} has found trouble that began before it")
        return all(each for each, _ in found), own

    def finish_writing(self) -> None:
        """Wait for the checkpoint that is being written, and follow it from now on."""
        if self._saver is not None:
            self._note_saved(self._saver)

    def _note_saved(self, saver: ShardedCheckpoints) -> None:
        saved, checkpoints = saver.wait() or saver.last, self._session.checkpoints
        if saved is None or saved is self._last_noted:
            return
        self._last_noted = saved
        if saved.failed is None:
            self._session.mark_saved(saved.step, was_written=True)
            if (
                checkpoints is not None
            ):  # all mark what they find sick; that one has proved itself is for the first to say
                is_first = checkpoints.together.is_writer
                checkpoints.disk.saved(saved.folder, self._verdict if is_first else NOT_JUDGED, has_manifest=True)
        else:
            self._session.note(
                "save-failed", f"the checkpoint of step {saved.step} could not be written: {saved.failed}"
            )
