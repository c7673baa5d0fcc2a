"""A line chart as SVG, written out by hand: no library is needed for one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 20, 160
COLOURS = ("#b2182b", "#ef8a62", "#888888", "#1b7837", "#67a9cf", "#2166ac")
DASHES = ("none", "none", "none", "2 4", "2 4", "2 4")
"""Dots are ours: measured with a few ranks, and nowhere near such a size."""
LOWEST = 0.7
TICKS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def picture(sizes: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    """Draw effective times over the number of GPUs, which doubles from mark to mark; what is lower than the axis stays at its foot."""
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size: int) -> float:
        return LEFT + across * (math.log2(size) - first) / (last - first)

    def y(share: float) -> float:
        return TOP + down * (1 - (max(LOWEST, share) - LOWEST) / (1 - LOWEST))

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img">',
        "<title>Effective training time by number of GPUs</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for tick in TICKS:
        drawn.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#333333">{tick:.0%}</text>')
    drawn.extend(
        f'<text x="{x(size):.1f}" y="{TOP + down + 17}" text-anchor="middle" fill="#333333">{size:,}</text>'
        for size in sizes
    )
    middle = LEFT + across / 2
    drawn.append(f'<text x="{middle:.1f}" y="{TOP + down + 36}" text-anchor="middle" fill="#333333">GPUs</text>')
    drawn.append(
        f'<text transform="translate(14 {TOP + down / 2:.1f}) rotate(-90)" text-anchor="middle" fill="#333333">effective training time</text>'
    )
    for place, (name, values) in enumerate(lines.items()):
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in zip(sizes, values, strict=True))
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{DASHES[place % len(DASHES)] or "none"}"/>'
        )
        at_x, at_y = LEFT, TOP + down + 58 + 17 * place
        drawn.append(f'<path d="M{at_x} {at_y - 4}h28" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"/>')
        drawn.append(f'<text x="{at_x + 36}" y="{at_y}" fill="#333333">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>", ""])
