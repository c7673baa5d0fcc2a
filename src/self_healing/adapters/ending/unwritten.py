"""What a run says at its end of checkpoints that the disk has refused: a run that trained to its end may have saved nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .leaving import how_to_resume

if TYPE_CHECKING:
    from ..run.session import Session

MOST_STEPS = 8
"""Steps that are named; of more only the number and the newest are."""


class Unwritten(NamedTuple):
    """Checkpoints that are not there."""

    told: str
    """A sentence for a person, with what to do."""
    is_unsaved: bool
    """Nothing on disk is as new as the newest of them."""


def unwritten_checkpoints(session: Session) -> Unwritten | None:
    """Return what there is to say of checkpoints that could not be written; None where all were."""
    failed = session.checkpoints.not_written if session.checkpoints is not None else {}
    if not failed:
        return None
    steps, newest = sorted(failed), session.newest_saved()
    is_unsaved = newest is None or newest < steps[-1]
    named = ", ".join(map(str, steps[-MOST_STEPS:]))
    which = f"of steps {'..., ' if len(steps) > MOST_STEPS else ''}{named}" if len(steps) > 1 else f"of step {named}"
    there = "none of this training is on disk" if newest is None else f"the newest on disk is checkpoint-{newest}"
    told = (
        f"{len(steps)} {'checkpoints' if len(steps) > 1 else 'checkpoint'} could not be written ({which}), and {there}"
    )
    kept = session.rollback.kept_step() if is_unsaved else None
    if kept is not None:
        told += (
            f". The state of step {kept} is left in shared memory, for a day at most: make room, and "
            f"{how_to_resume(session)} goes on from it"
        )
    elif is_unsaved:
        told += ". What was trained is in this process alone: save it from there, to another disk"
    return Unwritten(f"{told}. The last refusal: {failed[steps[-1]]}", is_unsaved)
