"""One frame of the live view: the story of a run as it stands, in as many lines as the terminal has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.heartbeat import Heartbeat
from ..report.curves import Point
from ..report.event import HEALED, NEW_NORMAL, OPEN, PASSED, RETRIED, WORSE, Event
from ..report.model import MEMORY, RunStory
from ..report.paragraph import duration, ended_by, figures_of, number
from .plots import columns_of, plot

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SILENT_S = 60.0
"""From when on it is said that a training has been silent."""
STYLES = {HEALED: "green", PASSED: "green", RETRIED: "cyan", NEW_NORMAL: "yellow", OPEN: "bold red", WORSE: "bold red"}
_NAMES = {"loss": "loss", "eval_loss": "eval loss", "reward": "reward", "grad_norm": "gradient", "learning_rate": "rate",
          "step_time_s": "step time", **dict.fromkeys(MEMORY, "memory")}  # fmt: skip
_LABEL = 26


def frame(run: RunStory, *, width: int, height: int, now_s: float, is_ascii: bool) -> RenderableType:
    """Return what is shown."""
    from rich.console import Group  # noqa: PLC0415

    width = max(40, width)
    lines: list[Text] = [*_head(run, width, now_s, is_ascii=is_ascii), _line("")]
    curves = _curves(run, width, tall=height >= 24, is_ascii=is_ascii)
    tail = [_line(""), _plan(run), *_ranks(run, width), _line("Ctrl-C ends this view; the training goes on.", "dim")]
    room = max(1, height - len(lines) - len(curves) - len(tail) - 3)
    lines += [*curves, _line(""), *_events(run, room), *tail]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if not is_ascii else "crop")
    return Group(*lines[: max(1, height - 1)])


def waiting(run_dir: Path, width: int) -> RenderableType:
    """Return what is shown while there is nothing."""
    from rich.console import Group  # noqa: PLC0415

    from ..core.secrets import strip_control  # noqa: PLC0415

    where = strip_control(str(run_dir))
    shown = [
        _line("waiting for a run", "bold"),
        _line(f"nothing is in {where}/healing yet"),
        _line("Ctrl-C ends this view.", "dim"),
    ]
    for line in shown:
        line.truncate(max(40, width))
    return Group(*shown)


def _line(text: str, style: str = "") -> Text:
    from rich.text import Text as RichText  # noqa: PLC0415

    return RichText(text, style=style, no_wrap=True, end="\n")


def _head(run: RunStory, width: int, now_s: float, *, is_ascii: bool) -> list[Text]:
    title = _line(run.outside.name or "run", "bold")
    word, style = _status(run, now_s)
    title.append("  ").append(word, style)
    step = f"  step {run.last_step:,}" if run.tells_steps else "  no step told"
    title.append(step + (f" of {run.max_steps:,}" if run.max_steps else ""), "")
    if run.max_steps:
        share = min(1.0, run.last_step / run.max_steps)
        room = max(10, min(30, width - len(title.plain) - 12))
        full, rest = ("#", "-") if is_ascii else ("\u2588", "\u2591")
        title.append(f"  {full * round(room * share)}{rest * (room - round(room * share))} {share:.0%}", "cyan")
    figures = _line("")
    for figure in figures_of(run)[1:]:
        tone = {"good": "green", "bad": "bold red"}.get(figure.tone, "bold")
        figures.append(f"{figure.label.lower()} ", "dim").append(figure.value, tone).append("   ")
    return [title, figures]


def _status(run: RunStory, now_s: float) -> tuple[str, str]:
    ended = ended_by(run)
    if ended:
        return ended.replace("_", " "), "bold green" if ended == "completed" else "bold red"
    beats: list[Heartbeat] = [rank.beat for rank in run.ranks.values() if rank.beat is not None]
    if not beats:
        silent = now_s - run.now_s
        return ("running", "bold cyan") if silent < SILENT_S else (f"silent for {duration(silent)}", "bold yellow")
    newest = max(beats, key=lambda beat: beat.time_s)
    silent = now_s - newest.time_s
    if silent >= SILENT_S:
        return f"{newest.phase}, silent for {duration(silent)}", "bold yellow"
    return str(newest.phase), "bold cyan"


def _curves(run: RunStory, width: int, *, tall: bool, is_ascii: bool) -> list[Text]:
    lines: list[Text] = []
    room = width - _LABEL - 1
    for name, label in _NAMES.items():
        curve = run.curves.get(name)
        if curve is None or curve.newest is None or (label == "memory" and run.memory != (name, curve)):
            continue
        rows = 4 if name == "loss" and tall else 1
        points = curve.recent(2000)
        picture = plot(columns_of(points, room), rows, is_ascii=is_ascii)
        unit = {"memory": " GiB", "step time": " s"}.get(label, "")
        for at, row in enumerate(picture):
            text = f"{label:<10}{number(curve.newest.value)}{unit}" if at == 0 else ""
            line = _line(f"{text:<{_LABEL}}")
            line.append(row, "green" if name == "loss" else "blue")
            lines.append(line)
        if name == "loss" and tall:
            lines.append(_marks(run, points, room))
    return lines or [_line("no metrics were recorded yet", "dim")]


def _marks(run: RunStory, points: list[Point], room: int) -> Text:
    """Return a line that shows where in the curve above incidents were."""
    first, last = points[0].step, points[-1].step
    row = [" "] * room
    for event in run.timeline.events:
        if first <= event.step <= last:
            row[min(room - 1, (event.step - first) * room // max(1, last - first + 1))] = (
                "^" if event.is_settled else "!"
            )
    line = _line(" " * _LABEL)
    line.append("".join(row), "magenta")
    return line


def _events(run: RunStory, room: int) -> list[Text]:
    events = list(run.timeline.events)[-room:]
    if not events:
        return [_line("no incidents", "green")]
    return [_event(event, tells_steps=run.tells_steps) for event in reversed(events)]


def _event(event: Event, *, tells_steps: bool) -> Text:
    rank = f" rank {event.rank}" if event.rank else ""
    step = f"step {event.step:<8,}" if tells_steps else f"attempt {event.attempt:<5}"
    line = _line(f"{event.number:>4}  {step}{rank} ")
    line.append(f"{event.title:<24} ", "bold").append(f"{event.state:<14}", STYLES.get(event.state, ""))
    deeds = [action for deed in event.deeds for action in (deed.actions or deed.failed)]
    done = ", ".join(dict.fromkeys(deeds)) or (event.because[0] if event.because else "")
    return line.append(f" {done}", "dim")


def _plan(run: RunStory) -> Text:
    found = run.timeline.current()
    if found is None:
        return _line("now: nothing is being tried", "dim")
    event, deed = found
    what = ", ".join(deed.actions) or deed.rung or "nothing"
    until = f", watched until step {deed.until_step:,}" if deed.until_step is not None else ""
    said = f": {deed.said}" if deed.said else ""
    at = f" at step {event.step:,}" if run.tells_steps else ""
    return _line(f"now: {what} because of {event.title.lower()}{at}{until}{said}", "yellow")


def _ranks(run: RunStory, width: int) -> list[Text]:
    if len(run.ranks) < 2:
        return []
    ranks = [run.ranks[key] for key in sorted(run.ranks)]
    parts = [f"rank {rank.rank}: step {_step(rank.last_step, rank.beat):,}" for rank in ranks]
    per_line = max(1, width // 20)
    return [
        _line("  ".join(parts[at : at + per_line]), "cyan") for at in range(0, min(len(parts), 4 * per_line), per_line)
    ]


def _step(step: int, beat: Heartbeat | None) -> int:
    return max(step, beat.step) if beat is not None and beat.ended is None else step
