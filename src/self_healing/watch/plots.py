"""Curves in characters: blocks where the terminal knows them, plain ASCII where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..report.curves import Point

BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII = " .:-=+*#@"
_OUTLIER = 50.0


def columns_of(points: Sequence[Point], width: int) -> list[float]:
    """Return the mean of each of so many stretches of steps; where there is none, or it is not finite, NaN."""
    if not points or width < 1:
        return []
    first, last = points[0].step, points[-1].step
    span = max(1, last - first + 1)
    sums, counts = [0.0] * width, [0] * width
    for point in points:
        at = min(width - 1, (point.step - first) * width // span)
        if math.isfinite(point.value):
            sums[at] += point.value
            counts[at] += 1
    columns = [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]
    if len(points) < width:  # few steps fill their stretches
        for at in range(1, width):
            columns[at] = columns[at - 1] if not counts[at] and not math.isnan(columns[at - 1]) else columns[at]
    return columns


def plot(columns: Sequence[float], rows: int, *, is_ascii: bool) -> list[str]:
    """Return a picture of so many rows, the highest first; single values far beyond the rest are cut off."""
    known = sorted(value for value in columns if math.isfinite(value))
    if not known:
        return [" " * len(columns)] * rows
    low, usual = known[0], known[len(known) // 2]
    tall = [value for value in known if usual > 0 and value > _OUTLIER * usual]
    high = known[-len(tall) - 1] if 0 < len(tall) < len(known) else known[-1]
    marks = ASCII if is_ascii else BLOCKS
    steps = len(marks) - 1
    scale = (rows * steps - 1) / (high - low) if high > low else 0.0
    heights = [
        0
        if not math.isfinite(value)
        else min(rows * steps, 1 + round((value - low) * scale))
        if scale
        else rows * steps // 2
        for value in columns
    ]
    return [
        "".join(marks[max(0, min(steps, height - row * steps))] for height in heights) for row in reversed(range(rows))
    ]
