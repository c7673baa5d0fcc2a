"""A step that has failed on one of several processes, or on all of them.

Where a step has collectives, the others wait in one that this process will not join: nothing can be tried again here, and
the process leaves at once, for a launcher to start all of them again from the state in shared memory. Where every process
has failed at the same place, all of them may do the step again, once what the failure has left behind is cleared away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.failure import FailureType
from ..exceptions import text_of
from ..memory.memory_errors import is_out_of_memory, let_go
from ..ranks.sharded_reset import reset_after_failure, why_not_reset
from ..run.reflexes import Reflex
from ..step.window import Window
from .plain_guard import can_be_run

if TYPE_CHECKING:
    from .session import PlainSession

MEET_S = 5.0
"""How long a process that has failed waits for the others to have failed too."""
MOST_TRIES = 4
"""How often one step is done again by all."""


class FailingTogether:
    """Answers what was raised in a step of one of several processes."""

    def __init__(self, session: PlainSession) -> None:
        self._session = session
        self._tries: dict[int, int] = {}

    def goes_on(self, window: Window | None, error: Exception) -> bool:
        """Say whether the loop does the step again; else this process leaves."""
        session = self._session
        if window is None or window.stood is None or session.interrupts.received is not None:
            return False
        if not getattr(session.trainer.accelerator, "is_fsdp2", False):
            retry = session.guard.retry
            is_alone = retry is not None and not retry.has_shared() and len(window.micro_batches) <= 1
            return is_alone and not _in_backward(window) and session.again.raised(window, error)
        step = window.step + 1
        tries = self._tries[step] = self._tries.get(step, 0) + 1
        if tries > MOST_TRIES or why_not_reset(session.trainer.model) is not None:
            return False
        if not session.ranks.have_all_failed(MEET_S):
            return False
        self._clear_away(window, error, tries)
        session.again.do_again(window)
        return True

    def _clear_away(self, window: Window, error: Exception, tries: int) -> None:
        session, step = self._session, window.step + 1
        is_memory = is_out_of_memory(error)
        because = f"{type(error).__name__} on every process: {text_of(error).partition(chr(10))[0][:300]}"
        let_go(error)
        reset_after_failure(session.trainer.model)
        said = "the step is done again by all"
        if is_memory and tries > 1 and can_be_run(window) and session.guard.retry is not None:
            less = session.guard.retry.use_less(
                window.micro_batches[-1].inputs
            )  # the same on all: they have seen the same
            said += f", with {less}" if less is not None else ""
        session.desk.reflex(
            Reflex(
                failure=FailureType.OOM if is_memory else FailureType.CRASH,
                incident="out-of-memory" if is_memory else "crashed", because=because,
                actions=("clear-cache",), said=f"nothing of it was applied: {said}", step=step - 1,
            )
        )  # fmt: skip


def _in_backward(window: Window) -> bool:
    """Say whether a backward pass has been begun in this step."""
    return bool(window.losses)
