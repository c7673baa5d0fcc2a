"""The curves of a run as pictures inside the page: drawn by matplotlib as SVG, coloured by the page's own variables.

What matplotlib colours with one of `_INKS` becomes a variable of the page, so that one picture is light and dark. Every text in
it is text, every incident a link to its place in the timeline. Nothing that comes from a run is put into a picture but numbers.
"""

from __future__ import annotations

import io
import logging
import math
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .curves import MOST_POINTS, Curve, Point
from .event import Event
from .model import RunStory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, NARROW = 940, 360
"""Widths in pixels; the page shows the one that fits, so that texts stay readable on a phone."""
_HEIGHTS = {WIDE: 230, NARROW: 220}
_INKS = {"series": "#010101", "second": "#020202", "grid": "#030303", "text": "#040404", "undone": "#050505",
         "bad": "#060606", "mark": "#070707", "paper": "#080808", "good": "#090909"}  # fmt: skip
_MOST_MARKS = {WIDE: 48, NARROW: 16}
"""Incidents that are marked by a number; where there are more, those that are open come first."""
_LOG_FROM = 50.0
"""The largest value as a multiple of the usual one from which an axis is logarithmic."""
_FEW = 0.01
"""The share of such values up to which the axis leaves them out and their height is written beside a mark instead."""
_MOST_POINTS = {WIDE: MOST_POINTS, NARROW: MOST_POINTS // 3}
_MOST_LABELS = 6
_LARGEST = 1e100
_DOTTED = 3
_ID = re.compile(r' id="([^"]*)"')
_NUMBER = re.compile(r">[^<]*<|-?\d+\.\d{2,}")
"""What is written between two tags, which stays as it is, or a coordinate."""
_drawing = threading.Lock()
"""Settings of matplotlib are of the whole process."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture, for wide and narrow screens."""

    key: str
    title: str
    unit: str
    wide: str
    narrow: str
    says: str
    """The same in words, for who does not see it."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A curve that cannot be shown, and why."""

    title: str
    because: str


@dataclass(frozen=True, slots=True)
class _Drawn:
    key: str
    title: str
    unit: str
    curve: Curve
    also: tuple[str, Curve] | None = None


def has_matplotlib() -> bool:
    """Say whether curves can be drawn."""
    from importlib.util import find_spec  # noqa: PLC0415

    return find_spec("matplotlib") is not None


def charts_of(run: RunStory) -> tuple[list[Chart], list[Missing]]:
    """Return the pictures of a run, and what there is no picture of."""
    curves, missing, wanted = run.curves, [], []
    for key, title, unit in (
        ("loss", "Loss", "loss"), ("reward", "Reward", "reward"), ("grad_norm", "Gradient norm", "gradient norm"),
        ("learning_rate", "Learning rate", "learning rate"), ("memory", "Memory", "GiB"), ("step_time_s", "Step time", "seconds"),
    ):  # fmt: skip
        gauge = run.memory
        curve = (gauge[1] if gauge else None) if key == "memory" else curves.get(key)
        evaluated = curves.get("eval_loss") if key == "loss" else None
        if curve is None and evaluated is not None:
            curve, evaluated = evaluated, None
        if curve is not None and curve.newest is not None:
            also = ("evaluation", evaluated) if evaluated is not None and evaluated.newest is not None else None
            wanted.append(_Drawn(key, title, unit, curve, also))
        elif curve is not None:
            missing.append(Missing(title, "every value that was recorded is not finite"))
        elif key != "reward":  # which only some trainings have
            missing.append(Missing(title, f"no {title.lower()} figures were recorded"))
    if not has_matplotlib():
        why = "curves are drawn by matplotlib, which is not installed: pip install 'self-healing-training[report]'"
        return [], [*(Missing(each.title, why) for each in wanted), *missing]
    events = list(run.timeline.events)
    return [_chart(each, events) for each in wanted], missing


def _chart(drawn: _Drawn, events: Sequence[Event]) -> Chart:
    with _drawing:
        wide, narrow = (_svg(drawn, events, width) for width in (WIDE, NARROW))
    return Chart(drawn.key, drawn.title, drawn.unit, wide, narrow, _in_words(drawn))


def _in_words(drawn: _Drawn) -> str:
    curve = drawn.curve
    assert curve.first is not None
    assert curve.newest is not None
    values = [point.value for stretch in curve.stretches() for point in stretch.points if math.isfinite(point.value)]
    return (
        f"{drawn.title} over steps {curve.first.step:,} to {curve.newest.step:,}: from {curve.first.value:.4g} to "
        f"{curve.newest.value:.4g}, lowest {min(values):.4g}, highest {max(values):.4g}."
    )


def _svg(drawn: _Drawn, events: Sequence[Event], width: int) -> str:
    import matplotlib as mpl  # noqa: PLC0415

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it keeps its list of fonts is nothing to tell of
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's own settings are
        mpl.rcParams.update({
            "svg.fonttype": "none", "svg.hashsalt": f"{drawn.key}-{width}", "font.size": 11, "axes.linewidth": 0.8,
            "text.parse_math": False, "path.simplify": True, "figure.dpi": 72, "axes.unicode_minus": False,
        })  # fmt: skip
        figure = Figure(figsize=(width / 72, _HEIGHTS[width] / 72))
        figure.patch.set_visible(False)
        height, left = _HEIGHTS[width], 72 if width == WIDE else 58
        # Fixed margins: the steps of all pictures stand below one another.
        place = (left / width, 44 / height, (width - left - 12) / width, (height - 44 - 40) / height)
        axes = figure.add_axes(place)
        _style(axes, drawn)
        _draw(axes, drawn, _MOST_POINTS[width])
        _mark(axes, events, width)
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_the_page(out.getvalue(), drawn, width)


def _style(axes: Axes, drawn: _Drawn) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator  # noqa: PLC0415

    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_INKS["grid"])
    axes.grid(visible=True, axis="y", color=_INKS["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INKS["text"], labelcolor=_INKS["text"], length=0, pad=6)
    axes.set_xlabel("step", color=_INKS["text"])
    axes.set_ylabel(drawn.unit, color=_INKS["text"])
    axes.yaxis.set_label_coords(10, 0.5, transform=_in_pixels(axes))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.01, y=0.12)


def _tick(value: float) -> str:
    """Return a number at an axis: short, whatever its size."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.5g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _in_pixels(axes: Axes) -> Any:
    """Return coordinates with pixels of the picture to the right, and parts of the axes' height upwards."""
    from matplotlib.transforms import IdentityTransform, blended_transform_factory  # noqa: PLC0415

    return blended_transform_factory(IdentityTransform(), axes.transAxes)


def _draw(axes: Axes, drawn: _Drawn, most: int) -> None:
    values = []
    drawn_curves = [(drawn.unit, drawn.curve, "series"), *([(*drawn.also, "second")] if drawn.also else [])]
    for name, curve, ink in drawn_curves:
        is_named = False
        for stretch in curve.stretches():
            color = _INKS["undone" if stretch.is_undone else ink]
            values += [_drawable(point.value) for point in stretch.points if math.isfinite(point.value)]
            marker = "o" if len(stretch.points) <= _DOTTED or curve is not drawn.curve else ""
            label = (
                None if stretch.is_undone or is_named else ("training" if drawn.also and curve is drawn.curve else name)
            )
            is_named = is_named or label is not None
            # Of a thinned curve the mean is drawn over what lies between the lowest and the highest values.
            is_thinned = len(stretch.means) > _DOTTED
            axes.plot(*_columns(_fewer(stretch.points, most)), color=color, linewidth=0.7 if is_thinned or stretch.is_undone else 1.4,
                      alpha=0.35 if is_thinned else None, solid_joinstyle="round", label=None if is_thinned else label,
                      marker=marker, markersize=3.5)  # fmt: skip
            if is_thinned:
                axes.plot(
                    *_columns(_fewer(stretch.means, most // 2)),
                    color=color,
                    linewidth=1.6,
                    solid_joinstyle="round",
                    label=label,
                )
    ordered = sorted(values)
    usual = ordered[len(ordered) // 2]
    if usual > 0 and ordered[-1] > _LOG_FROM * usual:
        tall = [value for value in ordered if value > _LOG_FROM * usual]
        if len(tall) <= max(2, len(ordered) * _FEW):
            _cut(axes, drawn.curve, ordered[: -len(tall)])
        elif ordered[0] > 0:
            _logarithmic(axes, ordered)
    if drawn.also is not None:
        axes.legend(frameon=False, labelcolor=_INKS["text"], loc="best", fontsize=10)


def _cut(axes: Axes, curve: Curve, usual: list[float]) -> None:
    """Let the axis end above what is usual; single values beyond it are marked at the top, with their size."""
    lowest, highest = usual[0], usual[-1]
    room = (highest - lowest) or abs(highest) or 1.0
    top = highest + 0.25 * room
    axes.set_ylim(lowest - 0.12 * room, top)
    beyond = [p for stretch in curve.stretches() for p in stretch.points if math.isfinite(p.value) and p.value > top]
    axes.plot([p.step for p in beyond], [top] * len(beyond), linestyle="", marker="^", markersize=5,
              color=_INKS["series"], clip_on=False)  # fmt: skip
    for point in sorted(beyond, key=lambda p: -p.value)[:_MOST_LABELS]:
        axes.annotate(f"{point.value:.4g}", (point.step, top), xytext=(7, -3), textcoords="offset points", va="top",
                      fontsize=10, color=_INKS["text"])  # fmt: skip


def _logarithmic(axes: Axes, positive: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_yscale("log")
    decades = math.log10(positive[-1] / positive[0]) if positive[0] > 0 else 9.0
    subs = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    axes.set_ylabel(f"{axes.get_ylabel()} (logarithmic)")


def _drawable(value: float) -> float:
    """Return a value whose axis has finite ends: a run that blows up comes to 1e308."""
    return max(-_LARGEST, min(_LARGEST, value))


def _fewer(points: list[Point], most: int) -> list[Point]:
    """Return at most about so many points, of each group the lowest and the highest."""
    size = 2 * math.ceil(len(points) / most)
    if size <= 2:
        return points
    kept: list[Point] = []
    for at in range(0, len(points), size):
        group = points[at : at + size]
        known = [point for point in group if math.isfinite(point.value)]
        ends = {min(known, key=lambda p: p.value), max(known, key=lambda p: p.value)} if known else {group[0]}
        kept += sorted(ends | {point for point in group if not math.isfinite(point.value)}, key=lambda p: p.step)
    return kept


def _columns(points: Iterable[Point]) -> tuple[list[int], list[float]]:
    rows = list(points)
    return [point.step for point in rows], [
        _drawable(point.value) if math.isfinite(point.value) else math.nan for point in rows
    ]


def _mark(axes: Axes, events: Sequence[Event], width: int) -> None:
    """Mark incidents: a tick at the axis for each, and for as many as there is room a line and a number that leads to the timeline."""
    left, right = axes.get_xlim()
    shown = sorted((e for e in events if left <= e.step <= right), key=lambda e: (e.step, e.is_settled, e.number))
    at_the_axis = axes.get_xaxis_transform()
    for ink, settled in (("mark", True), ("bad", False)):
        steps = [event.step for event in shown if event.is_settled is settled]
        across = [place for step in steps for place in (step, step, math.nan)]  # in one stroke, which is small
        axes.plot(
            across,
            [-0.03, 0.03, math.nan] * len(steps),
            color=_INKS[ink],
            linewidth=1.0,
            transform=at_the_axis,
            clip_on=False,
        )
    pixel = (right - left) / width
    taken = [-math.inf, -math.inf]
    """How far each of the two rows of numbers is used."""
    for event in sorted(_spread(shown, _MOST_MARKS[width]), key=lambda e: (e.step, e.is_settled, e.number)):
        color = _INKS["mark" if event.is_settled else "bad"]
        half = pixel * (8 + 3.2 * len(str(event.number)))
        row = next((at for at, used in enumerate(taken) if event.step - half >= used), None)
        if row is None:  # no room for its number: the timeline has it
            continue
        taken[row] = event.step + half
        axes.axvline(event.step, color=color, linewidth=0.9, alpha=0.55, linestyle=(0, (3, 3)))
        mark = axes.annotate(
            str(event.number), (event.step, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 5 + 15 * row),
            textcoords="offset points", ha="center", va="bottom", fontsize=9.5, fontweight="bold", color=color,
            annotation_clip=False, url=f"#incident-{event.number}",
            bbox={"boxstyle": "circle,pad=0.28", "facecolor": _INKS["paper"], "edgecolor": color, "linewidth": 1.1},
        )  # fmt: skip
        circle = mark.get_bbox_patch()
        assert circle is not None
        circle.set_url(f"#incident-{event.number}")


def _spread(events: list[Event], most: int) -> list[Event]:
    """Return as many as can be marked: those that are open, and of the others some from everywhere."""
    worst = [event for event in events if not event.is_settled][:most]
    others = [event for event in events if event.is_settled]
    room = most - len(worst)
    return worst + (others if len(others) <= room else [others[at * len(others) // room] for at in range(room)])


def _for_the_page(svg: str, drawn: _Drawn, width: int) -> str:
    """Return the drawing as it goes into the page: its own names apart, its colours those of the page, short numbers."""
    body = svg[svg.index("<svg") :]
    for name, ink in _INKS.items():
        body = body.replace(ink, f"var(--ink-{name})")
    used = set(re.findall(r"#([\w-]+)", body))
    salt = f"{drawn.key}-{width}-"
    body = _ID.sub(lambda hit: f' id="{salt}{hit[1]}"' if hit[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)(?!incident-)', rf"\g<1>{salt}", body)
    body = _NUMBER.sub(_shorter, body)
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    body = re.sub(r"font-family: [^;]*; ", "", body).replace(' target="_blank"', "")  # the page's own font, in the page
    body = re.sub(r'<a href="#incident-(\d+)">(?=\s*<text)', r'<a href="#incident-\1" aria-label="incident \1">', body)
    body = re.sub(r'<a href="(#incident-\d+)">', r'<a href="\1" tabindex="-1" aria-hidden="true">', body)
    body = re.sub(r" ?\n([LMCQz]) ?", r"\1", re.sub(r">\s+<", "><", body)).replace("M ", "M")
    body = re.sub(r' (width|height)="[\d.]+pt"', "", body, count=2)
    return re.sub(r"<svg ", f'<svg role="group" aria-label="{drawn.title} over steps" ', body, count=1).strip()


def _shorter(hit: re.Match[str]) -> str:
    found = hit[0]
    return found if found[0] == ">" else f"{float(found):.1f}".removesuffix(".0")
