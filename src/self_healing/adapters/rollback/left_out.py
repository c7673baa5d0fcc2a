"""Batches that are left out for good, each known by its epoch and its number there: as long as batches are of one size."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .data_windows import DataWindows, EpochData

Batch = tuple[int, int]
"""An epoch, and the number of a batch in it; both count from zero."""


class LeftOut(NamedTuple):
    """What a run has left out, for whoever goes on with it."""

    batch_size: int
    batches: frozenset[Batch]


def that_follow(first: Batch, many: int, length: int) -> list[Batch]:
    """Return so many batches from one on, beyond the end of its epoch too where the length of an epoch is known."""
    epoch, number = first
    count = length or number + many
    return [(epoch + at // count, at % count) for at in range(number, number + many)]


def left_out_of(data: DataWindows) -> frozenset[Batch]:
    """Return the batches that are left out for good, including those about to be left out."""
    if not data.epochs or not data.epochs[-1].left_out_next:
        return frozenset(data.left_out)
    epoch = data.epochs[-1]
    about_to_be = that_follow((epoch.number, epoch.read), epoch.left_out_next, epoch.length)
    return frozenset((*data.left_out, *about_to_be))


def pass_by_what_was_left_out(epoch: EpochData, left_out: Collection[Batch]) -> None:
    """Have an epoch that is entered in its middle go on behind what was trained: whoever counts steps does not see what was left out.

    The loader was brought behind as many batches as were trained. What was left out before that place is owed at the end
    of the epoch, less what has taken its place already.
    """
    place = epoch.read
    for number in sorted(number for each, number in left_out if each == epoch.number):
        place += number < place
    if place > epoch.read:
        beyond = max(0, place - epoch.length) if epoch.length else 0
        epoch.owed, epoch.reused, epoch.wanted_from = place - epoch.read - beyond, beyond, place
