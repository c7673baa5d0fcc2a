"""Where a loop begins: at its start, or where an earlier process has left it, in shared memory or on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError
from ...core.failure import Mode
from ..engines import Surroundings
from ..rollback.going_on import GoingOn
from ..rollback.left_state import StateDoesNotFitError
from .checkpoints import CheckpointDoesNotFitError, load_checkpoint
from .going_on_together import attempt_before, bring_to, enter_together, goes_on
from .session import PlainSession
from .stand_in import LoopStandIn

if TYPE_CHECKING:
    from ...config import HealingConfig


def begin_or_go_on(
    stand_in: LoopStandIn,
    config: HealingConfig,
    mode: Mode,
    loader: Any,
    *,
    save_every: int | None,
    also: tuple[Any, ...],
    resume: str | bool | Path | None,
) -> PlainSession:
    """Open the run of a loop, and have it go on where it was cut short.

    Raises:
        ConfigError: it cannot be gone on with, or not from what was named; the text says why and what to do.

    """
    stand_in.train_dataset = getattr(loader, "dataset", None)
    stand_in.args.per_device_train_batch_size = int(getattr(loader, "batch_size", None) or 0)
    if also and config.shared_memory:  # states there hold what every trainer has
        config = config.replace(shared_memory=False)
    surroundings = Surroundings(stand_in, missing=())
    is_alone = not surroundings.is_one_of_several
    going_on = GoingOn(stand_in, config, resume, surroundings) if mode is Mode.HEAL and is_alone else None
    before = None if is_alone else attempt_before(stand_in.args)
    # What all of them go on from is agreed upon later: that it is the same run is known already.
    resumes = going_on.resumes if going_on is not None else before is not None and goes_on(before, resume)
    session = PlainSession(
        stand_in, config, mode, save_every=save_every, also=also, resumes=resumes, starts_over=resume is False
    )
    try:
        is_together = not is_alone and session.desk.mode is Mode.HEAL
        session.begin(partial(enter_together, wanted=resume) if is_together else partial(_enter, going_on))
    except BaseException as error:
        session.end("exception", error)
        raise
    return session


def _enter(going_on: GoingOn | None, session: PlainSession) -> None:
    path = None if going_on is None else going_on.begin(session)
    while True:
        try:
            if path is not None and session.returns.restart.entry is None:
                _load(session, Path(path))
            session.rollback.begin()
            session.returns.restart.is_filled()
        except StateDoesNotFitError as error:  # before anything was touched
            assert going_on is not None, "a state that was left is only taken over where one was looked for"
            session.returns.restart.cancel()
            path = going_on.instead(session, error)
            continue
        return


def _load(session: PlainSession, folder: Path) -> None:
    """Load a checkpoint, and have the data brought to where they stood."""
    try:
        place, random = load_checkpoint(session.trainer, folder, session.also)
    except (CheckpointDoesNotFitError, OSError) as error:
        raise ConfigError(
            f"{folder} cannot be resumed from: {error}. Use guard(resume=False) to start over, or name another checkpoint."
        ) from error
    bring_to(session, folder, place, random)
    if session.checkpoints is not None:
        session.checkpoints.enters_from(str(folder))
        session.checkpoints.training_begins()
    session.mark_saved(int(session.trainer.state.global_step))
