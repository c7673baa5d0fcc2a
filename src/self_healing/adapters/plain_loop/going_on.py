"""Where a loop begins: at its start, or where an earlier process has left it, in shared memory or on disk."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError
from ...core.failure import Mode
from ...snapshots.resume import Chosen, resolve
from ...tensors.finite_at_first import never_finite
from ..engines import Surroundings
from ..rollback.going_on import GoingOn
from ..rollback.left_state import StateDoesNotFitError
from .checkpoints import CheckpointDoesNotFitError, load_checkpoint
from .going_on_together import attempt_before, bring_to, enter_together, goes_on
from .session import PlainSession
from .stand_in import LoopStandIn

if TYPE_CHECKING:
    from ...config import HealingConfig
    from .saving import LoopRun

logger = logging.getLogger("self_healing.loop")

NOT_TOGETHER = "%s is not carried out: several processes save and go on together only where mode is heal"


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
    asked = checkpoint_asked_for(stand_in, resume) if mode is not Mode.HEAL else None
    before = None if is_alone else attempt_before(stand_in.args)
    # What all of them go on from is agreed upon later: that it is the same run is known already.
    resumes = going_on.resumes if going_on is not None else before is not None and goes_on(before, resume)
    resumes = resumes or (asked is not None and asked.path is not None)
    session = PlainSession(
        stand_in, config, mode, save_every=save_every, also=also, resumes=resumes, starts_over=resume is False
    )
    try:
        is_together = not is_alone and session.desk.mode is Mode.HEAL
        session.begin(partial(enter_together, wanted=resume) if is_together else partial(_enter, going_on, asked))
    except BaseException as error:
        session.end("exception", error)
        raise
    return session


def checkpoint_asked_for(stand_in: LoopStandIn, resume: str | bool | Path | None) -> Chosen | None:
    """Return the checkpoint that a loop which nobody heals goes on from; None where none was asked for.

    Raises:
        ConfigError: what was named cannot be resumed from.

    """
    if resume is None or resume is False:
        return None
    if stand_in.args.world_size > 1:
        logger.warning(NOT_TOGETHER, f"resume={str(resume)!r}")
        return None
    masks = never_finite(stand_in.model)
    return resolve(resume, stand_in.args.output_dir, never_finite=masks, key="resume", writer="guard()")


def enter_from(run: LoopRun, asked: Chosen) -> bool:
    """Load what was asked for, and say so; False where the loop begins anew."""
    run.note("resuming", str(asked), level=logging.INFO if asked.is_as_wanted else logging.WARNING)
    if asked.path is not None:
        load_into(run, asked.path)
    return asked.path is not None


def _enter(going_on: GoingOn | None, asked: Chosen | None, session: PlainSession) -> None:
    path = None if going_on is None else going_on.begin(session)
    if asked is not None and enter_from(session, asked):
        session.mark_saved(int(session.trainer.state.global_step))
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


def load_into(run: LoopRun, folder: Path) -> None:
    """Load a checkpoint, and have the data brought to where they stood."""
    try:
        place, random = load_checkpoint(run.trainer, folder, run.also)
    except (CheckpointDoesNotFitError, OSError) as error:
        raise ConfigError(
            f"{folder} cannot be resumed from: {error}. Use guard(resume=False) to start over, or name another checkpoint."
        ) from error
    bring_to(run, folder, place, random)


def _load(session: PlainSession, folder: Path) -> None:
    load_into(session, folder)
    if session.checkpoints is not None:
        session.checkpoints.enters_from(str(folder))
        session.checkpoints.training_begins()
    session.mark_saved(int(session.trainer.state.global_step))
