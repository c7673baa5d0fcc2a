"""The checkpoints that the core knows as states to return to: each is reported when it is written, and when it is gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...core.signal import SnapshotDropped, SnapshotTaken
from ...snapshots.checkpoint_check import check
from ..ranks.save_together import folder_of_now

if TYPE_CHECKING:
    from .session import Session


def report_checkpoint(session: Session) -> None:
    """Report the checkpoint of this step, where it can be returned to, and those that cannot be any more."""
    step, own = session.desk.step(), session.abilities.own_checkpoints
    folder, _ = own.newest_usable(step + 1)
    if folder is not None and folder.step == step:
        session.mark_saved(step)
        session.desk.signal(SnapshotTaken(step=step, time_s=time.time(), key=str(folder.path)))
        own.reported.add(folder.path)
    elif _is_saved_as_model(session):  # as was asked for; it is no state to return to
        session.mark_saved(step, was_written=True)
    # Saving deletes older ones. The core keeps the past of each, which would be more and more.
    for gone in sorted(path for path in own.reported if not path.is_dir()):
        own.reported.discard(gone)
        session.desk.signal(SnapshotDropped(step=step, time_s=time.time(), key=str(gone)))


def _is_saved_as_model(session: Session) -> bool:
    is_wanted = bool(getattr(session.trainer.args, "save_only_model", False))
    return is_wanted and check(folder_of_now(session.trainer), thorough=False, model_only=True).is_usable
