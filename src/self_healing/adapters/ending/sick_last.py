"""What a run that was completed says of a last checkpoint that is sick: whoever uses it should know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .leaving import how_to_resume

if TYPE_CHECKING:
    from ..run.session import Session


def sick_last_checkpoint(session: Session) -> str | None:
    """Return what there is to say of the last checkpoint where it is sick; None where it is not, or another process wrote it."""
    checkpoints = session.checkpoints
    if checkpoints is None or not checkpoints.together.is_writer:
        return None
    last = checkpoints.last_if_sick()
    if last is None:
        return None
    sound = session.abilities.own_checkpoints.newest_sound(
        last.step,
        model_only=bool(getattr(session.trainer.args, "save_only_model", False)),
        sick={Path(state.key).name for state in checkpoints.disk.states if state.verdict.is_sick},
    )
    there = (
        "no other of this training is on disk"
        if sound is None
        else f"the newest before it that is not is {sound.name}, and {how_to_resume(session)} goes on from there"
    )
    return (
        f"{Path(last.key).name}, the last of this run, is marked sick ({last.verdict.because}): {there}. "
        "Evaluate it before you use it"
    )
