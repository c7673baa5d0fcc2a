"""Steps that a loop does again itself: its batch is handed out once more, with all that it had then.

For steps that we cannot run, because the loop has not told us how, and for those that are unsound every time, whose place
other data take. Nothing of such a step was applied, so that little has to be put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.errors import ActionFailed
from ...core.failure import FailureType
from ..data.network import Retries, may_pass
from ..exceptions import text_of
from ..memory.memory_errors import is_out_of_memory, let_go
from ..run.reflexes import Reflex
from ..step.window import Window
from .plain_guard import can_be_run

if TYPE_CHECKING:
    from .session import PlainSession

NOT_OURS = "the batch of this step was not handed out by run.batches"


class DoingAgain:
    """Which step of one loop is to be done again, and how often that was tried."""

    def __init__(self, session: PlainSession, retries: Retries) -> None:
        self._session = session
        self._retries = retries
        self._asked: tuple[Window, bool] | None = None
        """The step, and whether other data take the place of its own."""
        self._tried: dict[tuple[int, str], int] = {}
        """How often a step was done again, by why."""
        self._given_up = -1
        """The newest step that was given up."""

    @property
    def is_asked(self) -> bool:
        """Whether a step is to be done again."""
        return self._asked is not None

    def forget(self) -> None:
        """Begin to count anew: the run has returned to an earlier state."""
        self._tried.clear()
        self._asked, self._given_up = None, -1

    def is_one_more_try(self, step: int) -> bool:
        """Say whether a step that is not finite is done again, and not for the first time: it is one step, however often it is tried."""
        return self.is_asked and self._tried.get((step, "unsound"), 0) > 1

    def stepped(self, step: int) -> None:
        """Forget what was tried at steps that are long done."""
        self._tried = {key: times for key, times in self._tried.items() if key[0] >= step - 2}

    # -- asking --------------------------------------------------------------------------------------

    def unsound(self, window: Window) -> None:
        """Have a step done again that was not finite; with other data where it never is."""
        session, step = self._session, window.step + 1
        if (
            not can_be_run(window) and not session.ranks.is_one_of_several
        ):  # else that was done when we have run it again
            session.look_at_weights(window.step)
        if session.pending.asked is not None:  # it goes further back than that
            return
        times = self._count(step, "unsound")
        # What we have run again ourselves is unsound every time; what the loop has run was only unsound once so far.
        # Not for ever: where so many batches are never finite in a row, it is not the data that are to blame.
        bad_batches = times if can_be_run(window) else times - 1  # to hand the first out again has left none out
        may_go_on = bad_batches <= session.config.max_consecutive_skips and self._given_up != step - 1
        without = session.may_leave_out and may_go_on and (can_be_run(window) or times > 1)
        if window.stood is None or (times > 1 and not without):
            self.leave_out(window)
            return
        self._asked = (window, without)
        said = "its batch is left out, and the next takes its place" if without else "its batch is handed out again"
        self._tell(FailureType.NAN_LOSS, "step-not-finite", f"step {step} is not finite", "skip-step", said, step)

    def leave_out(self, window: Window) -> None:
        """Give a step up: nothing of it was applied, and nothing takes its place."""
        self._session.guard.making_up.left_out.append(window.step + 1)
        self._given_up = window.step + 1
        why = NOT_OURS if window.stood is None else "it is not finite every time"
        if window.stood is not None and not self._session.guard.hands_out_again:
            why = "it is not finite, and the loop has ended"
        self._session.note("step-left-out", f"step {window.step + 1} is left out: {why}")

    def raised(self, window: Window | None, error: Exception) -> bool:
        """Have a step done again whose trouble may be over by now; say whether it will be."""
        if window is None or window.stood is None or self._session.interrupts.received is not None:
            return False
        step, because = window.step + 1, f"{type(error).__name__}: {text_of(error).partition(chr(10))[0][:300]}"
        if may_pass(error):
            times = self._count(step, "network")
            if times > self._retries.most:
                return False
            self._retries.sleep(self._retries.pause_s(times))
            self._tell(FailureType.API_ERROR, "network-error", because, "retry-later", f"tried again ({times})", step)
        elif is_out_of_memory(error) and not can_be_run(window) and self._session.guard.retry is not None:
            if self._count(step, "memory") > 1:
                return False
            let_go(error)
            self._tell(
                FailureType.OOM,
                "out-of-memory",
                because,
                "clear-cache",
                "memory was freed, and it is tried again",
                step,
            )
        else:
            return False
        self._asked = (window, False)
        return True

    def raised_when_made_up(self, error: Exception) -> bool:
        """Have the loop do a step that has raised when we ran it again: there an exception has its answers. Say whether it will."""
        session, window = self._session, self._session.guard.kept[0]
        if window.stood is None or not session.guard.hands_out_again or session.ranks.is_one_of_several:
            return False
        step = window.step + 1
        if self._count(step, "made up") > 1:
            return False
        session.guard.forget_steps()
        self._asked = (window, False)
        session.note(
            "make-up-raised", f"step {step} raised {type(error).__name__} when it was made up: the loop does it again"
        )
        return True

    def do_again(self, window: Window) -> None:
        """Have a step done again, because all processes do."""
        self._asked = (window, False)

    def failed_step(self) -> str:
        """Have the step done again whose exception is being answered by a plan."""
        window = self._session.failed
        if window is None or window.stood is None:
            raise ActionFailed(NOT_OURS)
        self._asked = (window, False)
        return f"step {window.step + 1} is done again"

    # -- doing ---------------------------------------------------------------------------------------

    def carry_out(self) -> bool:
        """Put the loop back to before the step that it is to do again; say whether it was."""
        if self._asked is None:
            return False
        (window, without), self._asked = self._asked, None
        session = self._session
        if session.pending.asked is not None:  # it goes further back than that
            return False
        if without:
            session.guard.making_up.replaced.append(window.step + 1)
        session.returns.hand_out_again(window, without=without)
        session.intake.ended = [step for step in session.intake.ended if step <= window.step]
        return True

    def _count(self, step: int, why: str) -> int:
        times = self._tried[step, why] = self._tried.get((step, why), 0) + 1
        return times

    def _tell(self, failure: FailureType, incident: str, because: str, action: str, said: str, step: int) -> None:  # noqa: PLR0917  # private
        told = f"nothing of it was applied: {said}"
        self._session.desk.reflex(
            Reflex(failure=failure, incident=incident, because=because, actions=(action,), said=told, step=step - 1)
        )
