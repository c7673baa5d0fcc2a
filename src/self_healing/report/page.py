"""The report as one page of HTML that opens from disk: no script, no network, every text of the run escaped."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, NamedTuple

from .. import __version__
from ..core.goodput import TimeClass
from .charts import charts_of
from .event import HEALED, NEW_NORMAL, OPEN, PASSED, RETRIED, TOLD, WORSE
from .model import GIB, RunStory
from .paragraph import duration, ended_by, figures_of, status_of, story_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""What the page may do: nothing but show itself."""
TONES = {HEALED: "good", PASSED: "good", RETRIED: "good", TOLD: "", NEW_NORMAL: "warn", OPEN: "bad", WORSE: "bad"}
ENDINGS = {
    HEALED: "Healed",
    PASSED: "It passed",
    RETRIED: "Met by another attempt",
    TOLD: "For information",
    NEW_NORMAL: "Taken as the new normal",
    OPEN: "Still open when the record ends",
    WORSE: "It got worse",
}
KINDS = {
    TimeClass.PRODUCTIVE: ("Productive", "steps that count in the end"),
    TimeClass.EVALUATING: ("Evaluating", "evaluations"),
    TimeClass.CHECKPOINTING: (
        "Checkpointing",
        "states in memory and checkpoints on disk, as far as training waits for them",
    ),
    TimeClass.START_UP: ("Start-up", "of the first process, up to its first step"),
    TimeClass.RECOVERY: ("Recovery", "putting a state back, and running steps again whose updates were held back"),
    TimeClass.REPLAYED: ("Replayed", "steps that were undone and trained again"),
    TimeClass.STALLED: ("Stalled", "pauses before something is tried again, and silence"),
    TimeClass.RESTARTS: ("Restarts", "from the end of a process to the first step of the next"),
    TimeClass.DOWN: ("Down", "until somebody, or a scheduler, started the next process"),
    TimeClass.OTHER: ("Other", "what a process did after its training"),
    TimeClass.UNKNOWN: ("Unknown", "nobody has told"),
}
_MOST_DETAILED = 120
"""Events whose evidence and alternatives are in the page: they are most of what there is to read, and of its size."""
_BAD_ENDS = frozenset({"exception", "device_lost", "unrecoverable", "killed"})


class Spent(NamedTuple):
    """One kind of time."""

    kind: str
    label: str
    what: str
    time: str
    share: str
    weight: str


class AttemptRow(NamedTuple):
    """One attempt as the page lists it."""

    number: int
    steps: str
    left: str
    width: str
    time: str
    incidents: int
    ended: str
    says: str


def page_of(run: RunStory, *, is_live: bool = False) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    places = files(__package__) / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((places / "page.html").read_text(encoding="utf-8"))
    charts, missing = charts_of(run)
    # Only what this package has drawn itself goes into the page as it is.
    drawn = [
        {"key": chart.key, "title": chart.title, "says": chart.says, "wide": Markup(chart.wide), "narrow": Markup(chart.narrow)}  # noqa: S704
        for chart in charts
    ]  # fmt: skip
    style = Markup((places / "page.css").read_text(encoding="utf-8"))  # noqa: S704
    ended = ended_by(run)
    return template.render(
        run=run, policy=POLICY, style=style, is_live=is_live, version=__version__, story=story_of(run),
        figures=figures_of(run), charts=drawn, missing=missing, tones=TONES, endings=ENDINGS, duration=duration,
        marked=charts[0].key if charts else "", events=list(run.timeline.events), ranks=[run.ranks[key] for key in sorted(run.ranks)],
        detailed=_detailed(run),
        not_listed=run.timeline.seen - len(run.timeline.events), open_events=any(not e.is_settled for e in run.timeline.events),
        has_undone=any(s.is_undone for curve in run.curves.values() for s in curve.stretches()),
        many_attempts=run.account.attempts_seen > 1, many_ranks=len(run.ranks) > 1,
        status=status_of(run), status_tone="good" if ended == "completed" else "bad" if ended in _BAD_ENDS else "warn" if ended else "",
        advice=advice_of(run), spending=spending_of(run), caveats=run.spent.caveats if run.goodput is not None else (), attempts=attempts_of(run), in_force=changes_in_force(run),
        quarantined=list(run.account.quarantined), hardware=hardware_of(run),
    )  # fmt: skip


def _detailed(run: RunStory) -> set[int]:
    """Return the numbers of the events that are told at length: those that are open, and the newest of the others."""
    events = sorted(run.timeline.events, key=lambda event: (event.is_settled, -event.number))
    return {event.number for event in events[:_MOST_DETAILED]}


def advice_of(run: RunStory) -> list[str]:
    """Return what a person can do, as the run sees it or as its postmortem has said."""
    return list(dict.fromkeys([*run.account.advice(), *run.outside.advice]))


def spending_of(run: RunStory) -> list[Spent]:
    """Return where the wall time went, what took most first; productive time before all. Nothing where none was told."""
    seconds, total = run.spent.seconds, run.spent.wall_s
    if run.goodput is None or total <= 0:
        return []
    rows = sorted(
        ((s, kind) for kind, s in seconds.items() if s > 0), key=lambda r: (r[1] is not TimeClass.PRODUCTIVE, -r[0])
    )
    return [Spent(str(kind), *KINDS[kind], duration(s), f"{s / total:.1%}", f"{s / total:.4f}") for s, kind in rows]


def attempts_of(run: RunStory) -> list[AttemptRow]:
    """Return every attempt with its stretch of the steps."""
    attempts = list(run.account.attempts)
    most = max([each.last_step for each in attempts] + [run.max_steps or 0, 1])
    last = attempts[-1].number if attempts else 0
    rows = []
    for each in attempts:
        left = min(100.0, max(0.0, 100 * each.first_step / most))
        width = max(0.0, min(100.0 - left, 100 * (each.last_step - each.first_step) / most))
        ended = run.attempt_ends.get(each.number, "" if each.number == last else "cut short")
        rows.append(
            AttemptRow(
                each.number,
                f"{each.first_step:,} to {each.last_step:,}" if run.tells_steps else "-",
                f"{left:.2f}",
                f"{width:.2f}",
                duration(max(0.0, each.ended_s - each.began_s)),
                sum(event.attempt == each.number for event in run.timeline.events),
                ended.replace("_", " ") or "not yet",
                run.attempt_says.get(each.number, ""),
            )
        )
    return rows


def changes_in_force(run: RunStory) -> list[str]:
    """Return what was changed and not taken back, in words."""
    told = []
    for change in run.account.changes.in_force(run.last_step):
        value = f" = {change['value']:g}" if isinstance(change.get("value"), float) else ""
        told.append(f"{str(change['change']).replace('_', ' ')}{value}")
    return told


def hardware_of(run: RunStory) -> list[tuple[str, Any]]:
    """Return what it ran on, in units for people."""
    rows = []
    for key, value in run.outside.hardware.items():
        is_bytes = key.endswith("_bytes") and value.isdecimal()
        name = key.removesuffix("_bytes").replace("_", " ")
        rows.append((name, f"{int(value) / GIB:.1f} GiB" if is_bytes else value))
    return rows
