"""The other processes of a loop: all of them decide, take states, return, save and end at the same steps.

Everything is decided from what all have said in a vote (`ranks/`), so that no process does anything the others do not. Where
there is one process nothing here is different from a loop by itself.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from ...core.errors import RanksParted
from ...core.failure import Mode
from ..ranks.agreed_states import AgreedStates
from ..ranks.ranks_of_run import RanksOfRun
from ..ranks.side_group import SideGroup
from ..rollback.shared_states import left_out_of, place_of

if TYPE_CHECKING:
    from ..ranks.sharded_checkpoint import ShardedCheckpoints
    from .session import PlainSession

NOT_TOGETHER = "no emergency checkpoint: every process must take part in saving, and the others do not know of it"


class LoopRanks:
    """The other processes, as the session of one sees them."""

    def __init__(self, session: PlainSession) -> None:
        self._session = session
        self.is_several = session.surroundings.is_one_of_several
        self._ranks: RanksOfRun | None = None
        self._states: AgreedStates | None = None
        self._saver: ShardedCheckpoints | None = None
        self._last_noted: Any = None
        self.is_agreed = False
        """All processes are at this place, and know it."""

    @property
    def group(self) -> SideGroup:
        """The group over which they talk."""
        assert self._ranks is not None, "the others were met"
        return self._ranks.group

    @staticmethod
    def may_plan(mode: Mode, *, is_several: bool) -> Mode:
        """Return what may be done about plans: where the others cannot be asked, they are only shown."""
        return mode if not is_several or mode is not Mode.HEAL or SideGroup.is_possible() else Mode.ADVISE

    # -- life ----------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Meet the others: all of them begin at this moment."""
        session = self._session
        if not self.is_several:
            return
        keeper = session.rollback.keeper
        if keeper is not None:
            self._states = AgreedStates(keeper, session.desk.step)
        said = None if self._states is None else self._states.said()
        try:
            self._ranks = RanksOfRun.join(
                session.desk, session.config, acts=session.desk.mode is Mode.HEAL, states=said
            )
        except RanksParted as error:
            session.desk.only_show(f"{error}; plans are only shown, and nobody is named who does not answer")
        if self._states is not None:
            self._states.ranks = self._ranks

    def close(self, error: BaseException | None) -> None:
        """Leave the others, in good order or with an error."""
        saver, self._saver = self._saver, None
        if saver is not None and error is None:
            self._note_saved(saver)
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(error if isinstance(error, Exception) else None)

    # -- steps ---------------------------------------------------------------------------------------

    def step_ended(self, took_s: float) -> None:
        """Vote where it is time; what was decided is carried out before the next step, by all."""
        ranks, session = self._ranks, self._session
        if ranks is None:
            return
        step = session.desk.step()
        if ranks.voting.is_time(step):
            session.desk.settle()
        try:
            decision = ranks.step_ended(step, took_s=took_s)
            if decision is None:
                return
            ends = self._hear_of_signals()
        except RanksParted as error:
            session.end("exception", error)
            raise
        if self._states is not None:
            self._states.decided(decision)
        if decision.takes_state or ends or session.pending.asked is not None:
            session.know_everything()

    def vote_now(self) -> None:
        """Vote at once, at a place that all have come to for the same reason."""
        if self._ranks is not None:
            self._session.desk.settle()
            self._ranks.vote(self._session.desk.step())

    def take_figures(self) -> dict[str, float]:
        """Return what the last vote has shown, once."""
        return {} if self._ranks is None else self._ranks.take_figures()

    def returned(self, to_step: int) -> None:
        """Take note that all are at an earlier step again."""
        if self._ranks is not None:
            if self._states is not None:
                self._states.returned()
            self._ranks.begins_at(to_step)

    def begins_at(self, step: int) -> None:
        """Have all take the state that the run begins with."""
        if self._states is not None:
            self._states.begins_at(step)
        if self._ranks is not None:
            self._ranks.begins_at(step)

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

    def save(self, *, wait: bool) -> str:
        """Write a checkpoint of this step, all of them together; training goes on meanwhile unless it is to wait."""
        from ..ranks.sharded_checkpoint import ShardedCheckpoints

        session, stand_in = self._session, self._session.trainer
        step, returns = session.desk.step(), session.returns
        is_finite = int(session.weights_are_finite())
        if not all(said for (said,) in self.group.exchange([is_finite])):  # of any of them
            return "the weights are not finite, no checkpoint was written"
        if self._saver is None:
            self._saver = ShardedCheckpoints(stand_in.args.output_dir)
        self._note_saved(self._saver)
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
            scaler=getattr(stand_in.accelerator, "scaler", None), data=data, own=own, wait=wait,
        )  # fmt: skip
        if wait:
            self._note_saved(self._saver)
        return f"checkpoint-{step} is written by all {stand_in.args.world_size} processes"

    def _note_saved(self, saver: ShardedCheckpoints) -> None:
        saved = saver.wait() or saver.last
        if saved is None or saved is self._last_noted:
            return
        self._last_noted = saved
        if saved.failed is None:
            self._session.mark_saved(saved.step)
        else:
            self._session.note(
                "save-failed", f"the checkpoint of step {saved.step} could not be written: {saved.failed}"
            )
