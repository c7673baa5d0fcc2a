"""What is due between two batches of a loop, when it asks for the next one."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...core.errors import UnrecoverableError, give_up
from ...core.failure import Mode
from ..data.network import wait_unless_asked_to_end
from ..data.trainer_data import TrainerData
from ..ending.leaving import leave_as_asked
from ..rollback.guard_state import is_settled
from ..run.moves import ReturnTo, RollBackTo
from ..run.session import Session
from .doing_again import DoingAgain
from .loop_returns import LoopReturns, Stood
from .plain_guard import PlainGuard
from .together import LoopRanks


class LoopFlow(Session):
    """The part of a session that hands out batches: steps are read, plans carried out and states taken in between."""

    guard: PlainGuard
    returns: LoopReturns
    ranks: LoopRanks
    data: TrainerData
    again: DoingAgain
    save_every: int | None = None
    """Updates between checkpoints."""
    is_over = False
    """The loop is to end."""
    _has_stepped = False
    """An update was made that nobody has looked at the end of."""
    _stands: Any = None
    """Where the loop stands with the batch that it was given last."""
    unfinished: Stood | None = None
    """Where the loop stood with a batch that no update was made of yet: whoever goes on from here needs that batch again."""
    _loaders: list[Any]
    """Loaders whose records are guarded."""

    def end(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended, and put everything back."""
        raise NotImplementedError

    def all_are_here(self) -> None:
        """Take note that all processes are at this place, because a vote has brought them there."""
        raise NotImplementedError

    def save(self) -> str:
        """Write a checkpoint of this step."""
        raise NotImplementedError

    def lost(self, error: Exception) -> None:
        """End a run that an exception has ended."""
        raise NotImplementedError

    # -- batches -------------------------------------------------------------------------------------

    def enter_epoch(self, loader: Any) -> bool:
        """Begin an epoch of a loader; False where it was trained by an earlier process."""
        self.guard.hands_out_again = self.mode is Mode.HEAL
        self.guard.making_up.may_replace = False  # the loop is given other data itself
        self.abilities.hand_out_again = self.again.failed_step  # type: ignore[attr-defined]
        self.abilities.wait = partial(wait_unless_asked_to_end, self.interrupts)  # type: ignore[attr-defined]
        if self.mode is Mode.HEAL and not any(each is loader for each in self._loaders):
            self._loaders.append(loader)
            self.data.records.guard_loader(loader)
        return self.returns.enter(loader)

    def next_batch(self) -> tuple[bool, Any]:
        """Return whether there is a batch, and the batch; everything that is due between two steps is done before."""
        while True:
            if self.guard.is_in_window:  # gradients are being added up
                try:
                    return True, self._fetch()
                except StopIteration:  # the window goes on in the next epoch, if one comes
                    if self.returns.next_epoch() or self._is_sent_back():
                        continue
                    return False, None
            self.unfinished = None
            self._between_steps()
            if self.is_over:
                return False, None
            self.returns.begin_step()
            try:
                batch = self._fetch()
            except StopIteration:
                found = self._epoch_ends()
                if found[0] is None:
                    continue
                return found
            self.begin_of_step()
            if self._goes_elsewhere():
                continue
            if self.guard.hands_out_again:
                self._stands = self.unfinished = self.returns.stands()
            return True, batch

    def _goes_elsewhere(self) -> bool:
        """Go where the state that was just taken has shown that the run must; end here where a plan says so."""
        if self.abilities.stop_reason is not None:  # a step more would be one after the state that it ends with
            self._settle_moves()
        return self.go_where_asked()

    def _epoch_ends(self) -> tuple[Any, Any]:
        """Leave nothing to be made up or unseen; None in the first place says that there is more."""
        self.know_everything()
        self.look_at_the_end()  # for all that is known here, of the run
        self.ranks.epoch_ended()
        self._settle_moves()
        if self.is_over:
            return False, None
        if self.go_where_asked() or self._does_again() or self.returns.next_epoch():
            return None, None
        return False, None

    def _is_sent_back(self) -> bool:
        """Look at the weights where the data end between two blocks of an update; say whether the loop is somewhere else now."""
        if self.ranks.is_one_of_several or self._has_stepped:  # all return together; an update is not looked at yet
            return False
        self.intake.read(step_time_s=self._step_time_s, wait=True)
        if not is_settled(self.guard):  # to make a step up would drop the gradients that are there
            return False
        self.desk.take_in_the_unread()
        self.look_at_the_end()
        self._settle_moves()
        return not self.is_over and self.go_where_asked()

    def _fetch(self) -> Any:
        try:
            return self.data.records.fetched(self.returns.fetch)
        except StopIteration:
            raise
        except Exception as error:
            self.lost(error)
            raise

    def _between_steps(self) -> None:
        if self._has_stepped:
            self._step_ends()
        elif self.interrupts.received is not None:
            self.know_everything()
        self._settle_moves()
        if not self.is_over and not self._does_again():
            self.go_where_asked()

    def _step_ends(self) -> None:
        """Look at the end of an update, and write the checkpoint that is due after it."""
        self._has_stepped = False
        self.end_of_step()
        is_due = bool(self.save_every) and self._step() % int(self.save_every or 1) == 0
        if is_due and not self.again.is_asked and self.pending.asked is None:
            self.save()

    def _settle_moves(self) -> None:
        """End the loop where a signal or a plan has asked for it."""
        if self.interrupted_by is not None:
            self._leave_as_asked()
        elif self.abilities.stop_reason is not None:
            reason = self.abilities.stop_reason
            self.all_are_here()
            self.note("emergency", self.emergency_checkpoint())
            try:
                give_up(reason, None)
            except UnrecoverableError as error:
                self.end("unrecoverable", error)
                raise

    def _leave_as_asked(self) -> None:
        assert self.interrupted_by is not None
        self.pending.dropped(f"{self.interrupted_by.name} came, and there is no time to train anything again")
        self.end(self.interrupted_by.name.lower(), None)
        leave_as_asked(self, None, None)

    def go_where_asked(self) -> bool:
        """Return to an earlier state where a plan says so; say whether the loop is somewhere else now."""
        move = self.pending.take()
        if move is None:
            return False
        self.desk.forget_what_waits()
        assert isinstance(move, ReturnTo), "a loop is not entered anew"
        try:
            self.returns.return_to(move)
        except RollBackTo as unreached:
            self.pending.dropped("it is out of reach")
            self.note("emergency", self.emergency_checkpoint())
            error = UnrecoverableError(f"{move.key} cannot be returned to: {'; '.join(unreached.__notes__)}")
            self.end("unrecoverable", error)
            raise error from None
        self._has_stepped = False
        self.again.forget()
        return True

    def leave_epoch(self) -> None:
        """Note that the loop is behind an epoch, or has left it."""
        self.returns.leave()

    def block_begins(self) -> None:
        """Do what is due between two steps of a loop that takes its batches elsewhere."""
        if self.returns.is_between and self._has_stepped:
            self._between_steps()

    def _does_again(self) -> bool:
        if not self.again.carry_out():
            return False
        self._has_stepped = False
        return True
