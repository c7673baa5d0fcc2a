"""Checkpoints that all ranks write together, each its own part, and that any number of ranks can go on from.

`checkpoint-N/` holds `sharded/` (torch's distributed checkpoint, our index of it, and what is no large tensor as JSON and
safetensors), `trainer_state.json` and the manifest. It gets its name when all of it is there: what a killed run leaves
is called otherwise, and nobody takes it for a checkpoint. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import SelfHealingError
from ...snapshots.file_checks import read_json
from ...snapshots.manifest import describe, write_manifest
from ...snapshots.sharded_index import SHARDED, STATE, read_index
from ...snapshots.unfinished import UNFINISHED, begin_using, end_using, put_in_place, remove_what_was_left
from ...snapshots.verdicts import NOT_JUDGED, StateVerdict

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ...tensors.random_state import RandomState

logger = logging.getLogger("self_healing.ranks")

TENSORS = "state.safetensors"
PATIENCE_S = 600.0
"""How long ranks wait for each other in a save; one that has died is missed at once by gloo, one that hangs after this.

A process that ends in an orderly way waits for its thread that saves, and so up to this long for a rank that hangs.
"""
VERSION = 1
_SHARED = ("optimizer", "scheduler", "scaler", "data")


class CheckpointNotLoaded(SelfHealingError):
    """A checkpoint cannot be gone on from; the text says why."""


@dataclass(frozen=True, slots=True)
class Saved:
    """How a save has ended; the same on every rank."""

    step: int
    folder: Path
    failed: str | None
    """Why nothing was written; None where it was."""
    held_up_s: float
    """How long the training waited."""
    took_s: float
    """How long it took altogether."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a checkpoint held besides what was put back."""

    step: int
    world_size: int
    """How many ranks have written it."""
    data: Any
    """What was given as `data` when it was saved."""
    own: Any
    """What this rank has given as `own`; None where there was no such rank."""
    random_state: RandomState | None
    """Where this rank's random generators stood: to be put back by whoever has brought the data back to their place."""


@dataclass(slots=True)
class _UnderWay:
    step: int
    folder: Path
    began_s: float
    held_up_s: float
    future: Future[Any]


class ShardedCheckpoints:
    """Writes the checkpoints of one run, on a group of ranks of its own, one after the other.

    Made by all ranks at the same moment. Every method is called by all ranks with the same step, and none of them uses the
    training's own group.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, patience_s: float = PATIENCE_S) -> None:
        self.run_dir = Path(run_dir)
        if _is_first():  # before the group is there, without which nobody can begin to write
            remove_what_was_left(self.run_dir)
        self.group = own_group(patience_s)
        self.last: Saved | None = None
        """How the last save has ended that was waited for."""
        self._under_way: _UnderWay | None = None

    @property
    def is_saving(self) -> bool:
        """Whether this rank is still writing; others may be done sooner or later."""
        return self._under_way is not None and not self._under_way.future.done()

    def save(
        self,
        step: int,
        model: Any,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        data: Any = None,
        own: Any = None,
        verdict: StateVerdict = NOT_JUDGED,
        wait: bool = False,
    ) -> None:
        """Write `checkpoint-<step>`; the training goes on as soon as everything is copied, unless it is to wait.

        One that is still being written is waited for first. A disk that is full ends nothing: `wait` says what has become
        of a save. Nor does a state that holds more than numbers, text and tensors: it is not written.

        Args:
            step: The last step whose update the state holds.
            model: The model: sharded, replicated (DDP), compiled or plain.
            optimizer: Its optimizer.
            scheduler: Anything with `state_dict`, likewise the scaler.
            scaler: The gradient scaler.
            data: Where the data stand, as numbers, text and small tensors; that of the first rank is kept.
            own: What each rank keeps for itself.
            verdict: What is thought of the state, for the manifest.
            wait: Write it before this returns.

        Raises:
            CannotShareError: the state is not of a kind that can be written; on all ranks, and nothing was.

        """
        from torch.distributed.checkpoint.state_dict_saver import async_save
        from torch.distributed.checkpoint.state_dict_saver import save as save_now

        from ...tensors.sharded_files import ShardedWriter, write_json
        from ...tensors.sharded_state import named_state, unwrapped
        from ...tensors.written import Written

        self.wait()
        began_s = time.monotonic()
        rank, world_size = _place_of(self.group)
        named = named_state(unwrapped(model), optimizer)
        if rank > 0:  # as in a stock checkpoint those of the first rank are for everybody, and each rank keeps its own
            named.tensors = {name: each for name, each in named.tensors.items() if name not in named.buffers}
        shared, apart = Written(), Written()
        content = {
            "v": VERSION,
            "step": step,
            "world_size": world_size,
            "optimizer": shared.plain(named.optimizer),
            "scheduler": shared.plain(None if scheduler is None else scheduler.state_dict()),
            "scaler": shared.plain(None if scaler is None else scaler.state_dict()),
            "data": shared.plain(data),
            "tensors": shared.marks,
        }
        of_rank = {
            "random": _random_numbers(),
            "own": apart.plain(own),
            "buffers": {name: apart.plain(buffer) for name, buffer in named.buffers.items()},
            "tensors": apart.marks,
        }
        folder = self.run_dir / f"checkpoint-{step}"
        unfinished = self._unfinished(step)

        def write_own(path: Path) -> None:
            _must_be_understood("own", of_rank["own"])
            apart.save(path / f"rank-{rank}.safetensors")
            write_json(path / f"rank-{rank}.json", of_rank)

        def complete(path: Path) -> None:
            for key in _SHARED:
                _must_be_understood(key, content[key])
            shared.save(path / TENSORS)
            write_json(path / STATE, content)
            write_json(unfinished / "trainer_state.json", {"global_step": step, "world_size": world_size})
            write_manifest(unfinished, describe(unfinished, verdict, step=step))
            put_in_place(unfinished, folder)
            _make_lasting(folder.parent)

        writer = ShardedWriter(unfinished / SHARDED, own=write_own, complete=complete)
        begin_using(unfinished)
        how: dict[str, Any] = {"storage_writer": writer, "process_group": self.group, "no_dist": self.group is None}
        if wait:
            future = _done(lambda: save_now(named.tensors, **how))
        else:
            response: Any = async_save(named.tensors, **how)
            future = getattr(response, "upload_completion", response)
        self._under_way = _UnderWay(step, folder, began_s, time.monotonic() - began_s, future)
        if wait:
            self.wait()

    def wait(self) -> Saved | None:
        """Wait for the save that is under way and say what has become of it; None where there was none."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return None
        error = under_way.future.exception()
        end_using(self._unfinished(under_way.step))
        failed = None if error is None else _in_words(error)
        if failed is not None:
            if _place_of(self.group)[0] == 0:  # all have heard of it, so that nobody writes any more
                shutil.rmtree(self._unfinished(under_way.step), ignore_errors=True)
            logger.error("the checkpoint of step %d could not be written: %s", under_way.step, failed)
        took_s = time.monotonic() - under_way.began_s
        self.last = Saved(under_way.step, under_way.folder, failed, under_way.held_up_s, took_s)
        return self.last

    def _unfinished(self, step: int) -> Path:
        """Return where all ranks write what becomes the checkpoint of a step."""
        return self.run_dir / f"{UNFINISHED}-sharded-{step}"

    def load(self, folder: Path, model: Any, optimizer: Any = None, **others: Any) -> Loaded:
        """Put a checkpoint back, see `load`."""
        return load(folder, model, optimizer, group=self.group, **others)


def load(
    folder: Path, model: Any, optimizer: Any = None, *, scheduler: Any = None, scaler: Any = None, group: Any = None
) -> Loaded:
    """Put a checkpoint of any number of ranks back into what is there, on all ranks at the same moment.

    The folder is one that `snapshots.resume.choose` has found whole. Where it does not fit, nothing was touched.

    Raises:
        CheckpointNotLoaded: it cannot be read, or does not fit; the text says why.

    """
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

    from ...tensors.adoption import alike
    from ...tensors.random_state import RandomState
    from ...tensors.sharded_files import OnlyTensors, ShardedReader
    from ...tensors.sharded_state import taking
    from ...tensors.written import reader

    shards = Path(folder) / SHARDED
    rank, world_size = _place_of(group)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        entries = read_index(shards)
        content = _table(read_json(shards / STATE))
        read = reader(content["tensors"], shards / TENSORS, device)
        plain = {key: read(content[key]) for key in _SHARED}
        target = taking(model, optimizer, entries, plain["optimizer"])
        of_rank = _of_rank(shards, rank, device)
        has_own = of_rank is not None and int(content["world_size"]) == world_size
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointNotLoaded(f"{Path(folder).name} cannot be gone on from: {error}") from error
    try:
        load_tensors(
            target.tensors,
            storage_reader=ShardedReader(shards, entries),
            planner=OnlyTensors(),
            process_group=group,
            no_dist=group is None,
        )
    except CheckpointException as error:
        text = f"{Path(folder).name} could only be read in part, and the model holds some of it: {_in_words(error)}"
        raise CheckpointNotLoaded(text) from error
    target.fill(plain["optimizer"])
    if of_rank is not None and has_own:
        target.fill_buffers(of_rank["buffers"])
    for thing, value in ((scheduler, plain["scheduler"]), (scaler, plain["scaler"])):
        if thing is not None and value is not None:
            thing.load_state_dict(alike(thing.state_dict(), value))
    random = None if of_rank is None else RandomState.from_state(of_rank["random"])
    return Loaded(
        step=int(content["step"]),
        world_size=int(content["world_size"]),
        data=plain["data"],
        own=None if of_rank is None else of_rank["own"],
        random_state=random,
    )


def own_group(patience_s: float = PATIENCE_S) -> Any:
    """Make a group of all ranks for checkpoints alone, on all of them at once; None where there is one process only."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=patience_s))


def _is_first() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _place_of(group: Any) -> tuple[int, int]:
    if group is None:
        return 0, 1
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def _random_numbers() -> dict[str, Any]:
    from ...tensors.random_state import RandomState

    return RandomState.capture().numbers()


def _of_rank(shards: Path, rank: int, device: Any) -> dict[str, Any] | None:
    from ...tensors.written import reader

    path = shards / f"rank-{rank}.json"
    if not path.exists():
        return None
    content = _table(read_json(path))
    read = reader(content["tensors"], path.with_suffix(".safetensors"), device)
    buffers: dict[str, Any] = {}
    for name, plain in content["buffers"].items():
        with suppress(ValueError):  # too large to be kept by each rank: that of the first one is taken
            buffers[name] = read(plain)
    return {**content, "own": read(content["own"]), "buffers": buffers}


def _must_be_understood(key: str, plain: Any) -> None:
    """Refuse to write what nobody could read; where all ranks hear of it."""
    from ...tensors.plain import from_plain

    try:
        from_plain(plain, lambda name: name)
    except ValueError as error:
        raise ValueError(f"{key} is more than numbers, text and tensors: {error}") from error


def _table(content: object) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{STATE} is damaged: it holds no table")  # noqa: TRY004
    version = content.get("v", VERSION)
    if version != VERSION:
        raise ValueError(f"{STATE} is of version {version}, and this package knows {VERSION}")
    return content


def _make_lasting(folder: Path) -> None:
    """Have the names in a folder outlive the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _done(call: Any) -> Future[Any]:
    """Call something, and return what it returns or raises as one that was called elsewhere would."""
    from concurrent.futures import Future

    from torch.distributed.checkpoint.api import CheckpointException

    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except (CheckpointException, OSError, RuntimeError) as error:
        future.set_exception(error)
    return future


def _in_words(error: BaseException) -> str:
    """Say what has failed on which rank; torch puts the tracebacks of all ranks into the text."""
    failures: Mapping[int, Any] = getattr(error, "failures", None) or {}
    told = [f"rank {rank}: {type(each[0]).__name__}: {each[0]}" for rank, each in sorted(failures.items())]
    return "; ".join(told) or f"{type(error).__name__}: {error}"
