"""The furthest state of a run that was sound: a run that is given up keeps it, not the one it last returned to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ...snapshots.verdicts import SavedState
from ..ending.device_errors import is_device_lost
from .memory_snapshots import Furthest, MemorySnapshots


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
