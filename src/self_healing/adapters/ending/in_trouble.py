"""What a run that ended as completed says of trouble that was not over by then: nothing has shown that its weights are sound."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..rollback.harm import may_have_harmed

if TYPE_CHECKING:
    from ...core.lifecycle import Case
    from ..run.session import Session


def trouble_at_the_end(session: Session, *, is_said: bool) -> str | None:
    """Return what there is to say of harmful trouble that is open at the end of a completed run; None where there is none.

    Args:
        session: What has ended, with nothing left to look at.
        is_said: The last checkpoint is said to be sick, which at the planned end says the same.

    """
    state = session.trainer.state
    step, planned = int(state.global_step), int(state.max_steps)
    is_early = step < planned < sys.maxsize  # which stands for a loop that has not said how many
    if is_said and not is_early:
        return None
    harmful = [case for case in session.desk.healer.care.cases if may_have_harmed(case.incident)]
    left = [_in_words(case) for case in harmful if not case.is_over_if_completed()]
    if not left:
        return None
    where = f"at step {step}, before the {planned} that were planned" if is_early else f"at step {step}"
    # What stops early goes by numbers that the trouble may have made.
    return (
        f"The run has ended {where}, in trouble that was not over: {'; '.join(left)}. "
        f"Evaluate what it ends with before you use it{', and ask whether the trouble has ended it' if is_early else ''}"
    )


def _in_words(case: Case) -> str:
    incident = case.incident
    told = f"{incident.name}, last seen at step {incident.step} ({incident.because})"
    return told if case.returned_to is None else f"{told}, returned from to step {case.returned_to} and watched since"
