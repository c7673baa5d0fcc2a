"""Where several processes begin: all at the same state, the newest that each of them can have.

In shared memory every process finds what one of its number has left, as long as there are as many as before. On disk is what
all have written together, which any number of them can go on from: with fewer processes each update is made of more
micro-batches, so that it is made of as many rows as before.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError
from ...core.run_directory import launch_of, ledger_path
from ...snapshots.resume import AUTO, Chosen, choose, resolve
from ...snapshots.shared_folder import run_name
from ...snapshots.shared_reader import RefusedState, iter_states
from ...snapshots.unfinished import bring_back
from ..ending.last_attempt import last_attempt, that_tells
from ..rollback.left_state import LeftState, StateDoesNotFitError, StateLostError
from ..rollback.shared_states import place_from
from .checkpoints import CheckpointDoesNotFitError, load_checkpoint
from .loop_returns import Entry, Light

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState
    from ..ending.last_attempt import LastAttempt
    from ..ranks.sharded_checkpoint import Loaded
    from .saving import LoopRun
    from .session import PlainSession
    from .stand_in import LoopStandIn

SHARDS = "sharded"
"""What a checkpoint holds that all processes have written."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started all processes again, as it tells each of them."""


def enter_together(session: PlainSession, wanted: str | bool | Path | None) -> None:
    """Have all processes begin, or go on where they were cut short.

    Raises:
        ConfigError: what was named cannot be gone on from; on all of them.

    """
    session.rollback.open_shared(starts_over=wanted is False)
    passed_over: set[int] = set()
    while True:
        left, folder = _agreed(session, wanted, passed_over)
        try:
            if left is not None:
                session.note("resuming", f"goes on at {left.key}, as all processes do")
                session.rollback.go_on_at(left)
            elif folder is not None:
                _load(session, folder)
            problem = ""
            session.rollback.begin()
        except StateDoesNotFitError as error:
            problem = str(error)
            if isinstance(error, StateLostError):  # the model holds a part of it
                raise ConfigError(f"{left.key if left else folder} could not be taken over: {error}") from error
        problems = [text for text in session.ranks.group.exchange_texts(problem) if text]
        if not problems:
            session.returns.restart.is_filled()
            session.less_memory.begin()
            return
        session.note("resuming", f"{left.key if left else folder} is passed over: {problems[0]}")
        session.returns.restart.cancel()
        if left is None:
            raise ConfigError(f"{folder} cannot be gone on from: {problems[0]}")
        passed_over.add(left.step)


def _agreed(
    session: PlainSession, wanted: str | bool | Path | None, passed_over: set[int]
) -> tuple[LeftState | None, Path | None]:
    """Return what all go on from: a state in shared memory, a checkpoint, or neither."""
    args = session.trainer.args
    own: dict[int, LeftState] = {}
    is_gone_on_with = goes_on(session.before, wanted)
    is_open = wanted is None or wanted is True or str(wanted) == AUTO
    # Whether to go on is known to some of them alone: an agent whose processes were well counts no restart.
    if is_open and session.config.shared_memory and not session.also:
        own = {left.step: left for left in _left_states(session) if left.step not in passed_over}
    disk: Chosen = Chosen()
    refused = ""
    if args.process_index == 0 and wanted is not False:
        bring_back(args.output_dir)
        try:
            disk = _on_disk(session, wanted)
        except ConfigError as error:  # raised by all
            refused = str(error)
    lessons = session.less_memory.told() if wanted is not False else []
    found = None if disk.path is None else (str(disk.path), disk.step or 0)
    said = {"goes_on": is_gone_on_with, "steps": sorted(own), "disk": found, "refused": refused, "lessons": lessons}
    all_said = [json.loads(text) for text in session.ranks.group.exchange_texts(json.dumps(said))]
    folder = all_said[0]["disk"]
    session.less_memory.needed = [each["lessons"] for each in all_said]
    if all_said[0]["refused"]:
        raise ConfigError(all_said[0]["refused"])
    if _is_named(wanted):
        return None, Path(folder[0])
    if wanted is False or not any(each["goes_on"] for each in all_said):
        return None, None
    common = set.intersection(*(set(each["steps"]) for each in all_said))
    newest = max(common, default=-1)
    if newest >= 0 and (folder is None or newest >= folder[1]):
        return own[newest], None
    if disk.passed_over:
        session.note("resuming", f"passed over: {'; '.join(map(str, disk.passed_over))}")
    if folder is None:
        session.note("resuming", _nothing_in_common([each["steps"] for each in all_said]))
    return None, None if folder is None else Path(folder[0])


def _nothing_in_common(steps: list[list[int]]) -> str:
    """Say why a run that was to go on begins anew, with what each process has found."""
    found = "; ".join(f"rank {rank}: {', '.join(map(str, held)) or 'none'}" for rank, held in enumerate(steps))
    return (
        f"there is nothing to go on from, and training begins anew: no state in shared memory that every process has found "
        f"(by their steps, {found}), and no whole checkpoint on disk"
    )


def goes_on(before: LastAttempt | None, wanted: str | bool | Path | None) -> bool:
    """Say whether this process has reason to think that the run was cut short, or was told so."""
    if wanted is not None:
        return wanted is True or str(wanted) == AUTO
    if was_restarted():
        return True
    return before is not None and before.was_cut_short


def was_restarted() -> bool:
    """Say whether a launcher has started this process in the place of one that has failed."""
    return int(os.environ.get(RESTARTS, "0")) > 0 or (launch_of(os.environ) or 1) > 1


def _left_states(session: PlainSession) -> list[LeftState]:
    args = session.trainer.args
    found = []
    for state in iter_states(run_name(args.output_dir, int(args.process_index))):
        if isinstance(state, RefusedState):
            session.note("resuming", f"passed over: {state}")
            continue
        try:
            found.append(LeftState(state))
        except StateDoesNotFitError as error:
            session.note("resuming", f"passed over: {state.file}: {error}")
    return found


def _is_named(wanted: str | bool | Path | None) -> bool:
    return isinstance(wanted, str | Path) and str(wanted) != AUTO


def _on_disk(session: PlainSession, wanted: str | bool | Path | None) -> Chosen:
    """Return the checkpoint that was named, else the newest usable one.

    Raises:
        ConfigError: the one that was named cannot be resumed from.

    """
    run_dir = session.trainer.args.output_dir
    if _is_named(wanted):
        return resolve(wanted, run_dir, key="resume", writer="guard()")
    # Where nobody has asked for it, what another run has left here is not gone on from.
    run = session.before if wanted is None else None
    return choose(run_dir, why_not=None if run is None else run.why_not_its)


def _load(session: PlainSession, folder: Path) -> None:
    """Load a checkpoint that all have written, and have the data brought to where they stood."""
    from ..ranks.sharded_checkpoint import CheckpointNotLoaded, load

    stand_in = session.trainer
    if not (folder / SHARDS).is_dir() and not getattr(stand_in.accelerator, "is_fsdp2", False):
        _load_whole(session, folder)
        return
    try:
        loaded = load(
            folder, stand_in.model, stand_in.optimizer, scheduler=stand_in.lr_scheduler,
            scaler=getattr(stand_in.accelerator, "scaler", None), group=session.ranks.group.process_group,
        )  # fmt: skip
    except CheckpointNotLoaded as error:
        raise ConfigError(f"{folder} cannot be resumed from: {error}") from error
    stand_in.state.global_step = loaded.step
    session.mark_saved(loaded.step)
    if session.checkpoints is not None and session.checkpoints.together.is_writer:
        session.checkpoints.disk.resumed(folder)
    session.note("resuming", f"goes on at {folder.name}, which {loaded.world_size} processes have written")
    is_same = loaded.world_size == stand_in.args.world_size
    bring_to(session, folder, _place(session, loaded), loaded.random_state if is_same else None)


def _load_whole(session: PlainSession, folder: Path) -> None:
    """Load a checkpoint that one process has written, alone or because the others could not be waited for."""
    stand_in = session.trainer
    try:
        place, random = load_checkpoint(stand_in, folder, session.also)
    except (CheckpointDoesNotFitError, OSError) as error:
        raise ConfigError(f"{folder} cannot be resumed from: {error}") from error
    session.mark_saved(int(stand_in.state.global_step))
    then = int((place or {}).get("world_size", 1))
    session.note("resuming", f"goes on at {folder.name}, which one of {then} processes has written")
    if place is not None and then != stand_in.args.world_size:
        place = _place_of_all(session, place, then, int(place.get("accumulate", 1)))
    bring_to(session, folder, place, random if stand_in.args.process_index == 0 else None)


def bring_to(session: LoopRun, folder: Path, place: dict[str, Any] | None, random: RandomState | None) -> None:
    """Have the data brought to where they stood when a checkpoint was written, if it says that."""
    if place is None or place["number"] is None:
        session.note("resuming", f"{folder.name} does not say where the data stood: they begin anew")
        return
    where, left_out = place_from(place)
    session.returns.data.left_out |= left_out
    stand_in = session.trainer
    session.returns.restart.entry = Entry(
        where, int(stand_in.state.global_step), partial(_arrive, stand_in, Light.of(stand_in), random),
        is_between=bool(place["is_between"]), brings_data=bool(place.get("brings_data")),
    )  # fmt: skip


def _place(session: PlainSession, loaded: Loaded) -> dict[str, Any] | None:
    """Return where the data of this process stand; with another number of processes, each has read another part of them."""
    now, then = session.trainer.args.world_size, loaded.world_size
    if now == then:
        own = loaded.own or {}
        for thing, state in zip(session.also, own.get("also", ()), strict=True):
            thing.load_state_dict(state)
        place: dict[str, Any] | None = own.get("place")
        return place
    return _place_of_all(session, loaded.data.get("place"), then, int(loaded.data.get("accumulate", 1)))


def _place_of_all(
    session: PlainSession, told: dict[str, Any] | None, then: int, accumulate: int
) -> dict[str, Any] | None:
    """Return where the data stand now that another number of processes shares them, by where they stood for one of those."""
    now = session.trainer.args.world_size
    _keep_rows(session, then, accumulate)
    if told is None or told["number"] is None:
        return None
    batches = int(told["number"]) * then
    number = batches // now if batches % now == 0 else None
    return {**told, "number": number, "start": None, "left_out": []}


def _keep_rows(session: PlainSession, then: int, accumulate: int) -> None:
    """Have an update made of as many rows as it was, where fewer or more processes share them."""
    stand_in, now = session.trainer, session.trainer.args.world_size
    pieces, rest = divmod(accumulate * then, now)
    if rest or not pieces:
        session.note(
            "rows-of-an-update",
            f"{then} processes with {accumulate} micro-batches each have become {now}: an update cannot be made of as many rows",
        )
        return
    stand_in.current_gradient_accumulation_steps = stand_in.args.gradient_accumulation_steps = pieces
    session.note(
        "rows-of-an-update",
        f"{then} processes have become {now}: {pieces} micro-batches make an update where {accumulate} did, so that it is of as "
        "many rows as before",
    )


def _arrive(stand_in: LoopStandIn, light: Light, random: RandomState | None) -> None:
    """Put back what the loop may have changed on its way to where it goes on."""
    light.restore(stand_in, with_random=False)
    if random is not None:
        random.restore()


def attempt_before(args: Any) -> Any:
    """Return what the ledger of this process says of the attempt before this one; to be asked before it is opened."""
    return that_tells(last_attempt(ledger_path(args.output_dir, args.process_index)))


def lessons_before(args: Any) -> list[dict[str, Any]]:
    """Return what the ledger of this process says that batches need; to be asked before it is opened."""
    last = last_attempt(ledger_path(args.output_dir, args.process_index))
    return [] if last is None else [dict(lesson) for lesson in last.lessons]
