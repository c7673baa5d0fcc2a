"""The furthest state of a run that was sound: a run that is given up keeps it, not the one it last returned to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ...snapshots.verdicts import SavedState
from ..ending.device_errors import is_device_lost
from .memory_snapshots import Furthest, MemorySnapshots

if TYPE_CHECKING:
    from .state_keeper import StateKeeper


def return_to_the_furthest(keeper: StateKeeper) -> str:
    """Put the furthest sound state back where the run ends before it has come as far again; say so."""
    if keeper.common is not None:  # each process alone knows which that is, and all must end with the same weights
        return ""
    is_sound = _is_sound(keeper) and keeper.audit.is_finite_now()
    if not is_sound:
        keep_the_furthest(keeper)
    furthest = keeper.loop.snapshots.furthest
    if furthest is None or (is_sound and furthest.updates <= keeper.updates) or not furthest.capture.copies.verify():
        return ""
    if keeper.loop.guard is not None:
        keeper.loop.guard.abandon_step()  # now: what it would put back later belongs to the state that is left
    furthest.capture.restore()
    keeper.updates = furthest.updates
    keeper.is_unexplained = False
    keeper.audit.returned(furthest.step, furthest.capture.copies.norms())  # no training has led here since the return
    return f"; the weights are those of step {furthest.step}, the last that were sound"


def keep_the_furthest(keeper: StateKeeper) -> None:
    """Keep the furthest sound state, in case the run ends before it has come as far again."""
    is_sound = _is_sound(keeper)  # which has the states judged, too
    keeper.loop.snapshots.furthest = furthest_sound(
        keeper.loop.snapshots,
        keeper.states,
        step=int(keeper.trainer.state.global_step),
        updates=keeper.updates,
        is_sound=is_sound,
        of_interest=keeper.audit.buffers.without,
        tell=keeper.note,
    )


def _is_sound(keeper: StateKeeper) -> bool:
    """Say whether nothing is known to have harmed the weights, by what is open at this moment.

    What has just asked for the end, or for the return, was seen since a step was judged at its end.
    """
    keeper.known.suspect(keeper.cases())
    return keeper.known.open is None and not keeper.is_unexplained


def furthest_sound(
    snapshots: MemorySnapshots,
    states: Iterable[SavedState],
    *,
    step: int,
    updates: int,
    is_sound: bool,
    of_interest: Callable[[Mapping[str, float]], Mapping[str, float]],
    tell: Callable[[str, str], None],
) -> Furthest | None:
    """Return the furthest sound state there is: one that is kept, else that of this moment where that is sound.

    It is only for a run that ends before it has come as far again: where there is no memory for it, the run goes on without.
    """
    known = [snapshots.furthest] if snapshots.furthest is not None else []
    for state in states:
        snapshot = snapshots.get(state.key)
        if snapshot is not None and state.verdict.survives_a_crash:
            known.append(Furthest(snapshot.step, snapshot.updates, snapshot.capture))
    furthest = max(known, key=lambda each: each.updates, default=None)
    if is_sound and (furthest is None or updates > furthest.updates):
        # What was wrong was held back, so that the weights are those of the last update.
        try:
            present = snapshots.present()
            is_finite = all(math.isfinite(norm) for norm in of_interest(present.copies.norms()).values())
        except (MemoryError, OSError, RuntimeError) as error:
            if is_device_lost(error):
                raise
            tell(
                "furthest-not-kept",
                f"the state of step {step} could not be set aside ({type(error).__name__}: {error})",
            )
            return furthest
        if is_finite:
            furthest = Furthest(step, updates, present)
    return furthest
