"""Checkpoints of a loop: of this moment, or of a state that was set aside, with where its data stood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...tensors.random_state import RandomState
from ..rollback.left_out import left_out_of
from ..rollback.shared_states import place_of
from .checkpoints import write_checkpoint, write_place

if TYPE_CHECKING:
    from ..rollback.data_windows import Place
    from ..rollback.trainer_capture import HostValues
    from .loop_returns import LoopReturns, Stood
    from .session import PlainSession
    from .stand_in import LoopStandIn


class LoopRun(Protocol):
    """A loop whose data come from us, guarded or not: what it takes to write a checkpoint of it, and to go on from one."""

    trainer: LoopStandIn
    returns: LoopReturns
    unfinished: Stood | None
    also: tuple[Any, ...]

    @property
    def note(self) -> Callable[..., None]:
        """What there is to say is said by it."""
        ...


def write_now(session: LoopRun) -> None:
    """Write the state of this moment; inside of a step it is the one before it, whose batch is handed out again."""
    stand_in, returns = session.trainer, session.returns
    folder = Path(stand_in.args.output_dir) / f"checkpoint-{int(stand_in.state.global_step)}"
    place, unfinished, left_out = None, session.unfinished, left_out_of(returns.data)
    if unfinished is not None:  # the weights are those before it
        place = {
            **place_of(unfinished.place, left_out),
            "is_between": False,
            "brings_data": True,
            **_shared_by(session),
        }
    elif returns.is_in_epochs:
        told = place_of(returns.place_now(), left_out)
        place = {**told, "is_between": returns.is_between, "brings_data": False, **_shared_by(session)}
    random = RandomState.capture() if unfinished is None else unfinished.light.random
    write_checkpoint(stand_in, folder, place, random, [thing.state_dict() for thing in session.also])


def write_place_of(session: PlainSession, folder: Path, place: Place, values: HostValues) -> None:
    """Write where the data stood at a state that was taken when its first batch had been fetched."""
    told = place_of(place, left_out_of(session.returns.data))
    told = {**told, "is_between": False, "brings_data": True, **_shared_by(session)}
    write_place(folder, told, values.random, values.also)


def _shared_by(session: LoopRun) -> dict[str, int]:
    """Return among how many processes the data are shared, and what each of them makes an update of."""
    stand_in = session.trainer
    accumulate = int(stand_in.current_gradient_accumulation_steps)
    return {"world_size": stand_in.args.world_size, "accumulate": accumulate}
