"""An exception of a training: reported to the core, and answered by what can be done inside the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...core.errors import UnrecoverableError
from ...core.failure import Mode
from ...core.signal import Raised
from ..data.other_data import blame_the_model_if_other_data_fail, blame_the_record_of_an_evaluation
from ..exceptions import came_from_a_callback, describe, is_pruning, remarks_on
from ..run.moves import LeaveLoop
from .device_errors import is_device_lost

if TYPE_CHECKING:
    from ...core.plan import Plan
    from ..run.session import Session


def raised_in_the_loop(session: Session, error: Exception) -> None:
    """Look at an exception while there is still a loop to return to an earlier state in."""
    if isinstance(error, LeaveLoop) or is_pruning(error) or is_the_end(session, error) or came_from_a_callback(error):
        return
    if is_device_lost(error):  # no state can be returned to in here
        return
    if session.trainer.args.auto_find_batch_size or session.interrupts.received is not None:
        return  # accelerate has an answer of its own outside; and who is asked to end does not begin again
    session.answered = error
    raised(session, error)


def is_the_end(session: Session, error: Exception) -> bool:
    """Say whether an exception is how a plan ends the run in the middle of its loop."""
    return isinstance(error, UnrecoverableError) and session.abilities.stop_reason is not None


def raised(session: Session, error: Exception) -> Plan | None:
    """Report an exception that left the loop and carry out what can be done inside the process."""
    if session.mode is Mode.HEAL and not session.surroundings.is_one_of_several and not session.guard.device_is_lost:
        blame_the_record_of_an_evaluation(session.guard, error)
        blame_the_model_if_other_data_fail(session.guard, error)
    told = describe(error)
    told["message"] = "\n".join((told["message"], *remarks_on(error)))
    session.abilities.left_by = error
    trainer = session.trainer
    seen = Raised(step=int(trainer.state.global_step), time_s=time.time(), rank=trainer.args.process_index, **told)
    try:
        return session.desk.signal(seen)
    finally:
        session.abilities.left_by = None
