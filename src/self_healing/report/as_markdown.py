"""The report as Markdown, for an issue or a merge request: the same story, nothing from a log is markup there."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Iterator

from .event import Event
from .model import RunStory
from .page import ENDINGS, advice_of, attempts_of, changes_in_force, hardware_of, spending_of
from .paragraph import figures_of, number, status_of, story_of

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!<>$])")
_MOST_EVENTS = 100
Mask = Callable[[str], str]


def as_markdown(run: RunStory, mask: Mask = str) -> str:
    """Return the report; `mask` takes out of a text what others must not see."""

    def safe(text: object) -> str:
        return _escaped(mask(str(text)))

    return "\n".join(_parts(run, safe)).rstrip("\n") + "\n"


def _parts(run: RunStory, safe: Callable[[object], str]) -> Iterator[str]:
    yield f"# {safe(run.outside.name or 'run')}: {safe(status_of(run))}"
    yield ""
    yield safe(" ".join(story_of(run)))
    yield ""
    if run.outside.exception:
        yield f"Ended by: {safe(run.outside.exception)}"
        yield ""
    yield from _table(("", ""), ((row.label, f"{row.value} {row.note}".strip()) for row in figures_of(run)), safe)
    if advice := advice_of(run):
        yield from _section("What is left to do", (f"- {safe(each)}" for each in advice))
    yield from _curves(run, safe)
    yield from _section("Timeline", ())
    events = list(run.timeline.events)
    if not events:
        yield "Nothing went wrong that our rules look for."
        yield ""
    if run.timeline.seen > _MOST_EVENTS:
        yield f"The newest {_MOST_EVENTS} of {run.timeline.seen} incidents:"
        yield ""
    for event in events[-_MOST_EVENTS:]:
        yield from _event(event, safe, tells_steps=run.tells_steps)
    yield from _section("Where the time went", ())
    spent = spending_of(run)
    if spent:
        yield from _table(("kind", "time", "share"), ((each.label, each.time, each.share) for each in spent), safe)
    else:
        yield "No account of the time was recorded."
        yield ""
    yield from _section("Attempts", ())
    rows = ((each.number, each.steps, each.time, each.incidents, each.ended) for each in attempts_of(run))
    yield from _table(("attempt", "steps", "time", "incidents", "ended"), rows, safe)
    yield from _rest(run, safe)


def _curves(run: RunStory, safe: Callable[[object], str]) -> Iterator[str]:
    yield from _section("Curves", ())
    rows = []
    for name, curve in run.curves.items():
        values = [p.value for stretch in curve.stretches() for p in stretch.points if math.isfinite(p.value)]
        if curve.first is not None and curve.newest is not None:
            cells = (curve.first.value, curve.newest.value, min(values), max(values))
            rows.append((name, *(number(cell) for cell in cells), curve.not_finite))
    if rows:
        yield from _table(("metric", "first", "last", "lowest", "highest", "not finite"), rows, safe)
    if not {"loss", "eval_loss"} & run.curves.keys():
        yield "No loss figures were recorded."
    if run.memory is None:
        yield "No memory figures were recorded."
    yield ""


def _event(event: Event, safe: Callable[[object], str], *, tells_steps: bool) -> Iterator[str]:
    at = f" at step {event.step:,}" if tells_steps else ""
    yield f"### {event.number}. {safe(event.title)}{at}: {safe(event.state)}"
    yield ""
    yield from (f"- seen: {safe(each)}" for each in event.because)
    if event.hypotheses:
        first = event.hypotheses[0]
        yield f"- diagnosis: {safe(first.says or first.name)} ({first.weight:.0%} support)"
    for deed in event.deeds:
        what = ", ".join(deed.actions + [f"{each} failed" for each in deed.failed]) or "nothing"
        verdict = f"; judged: {deed.verdict}" if deed.verdict else ""
        said = f": {deed.said}" if deed.said else ""
        at = f", step {deed.step:,}" if tells_steps else ""
        yield f"- {safe(deed.how)}{at}: {safe(what + said + verdict)}"
    yield f"- outcome: {ENDINGS[event.state]}" + (f"; {event.steps_lost:,} steps undone" if event.steps_lost else "")
    yield ""


def _rest(run: RunStory, safe: Callable[[object], str]) -> Iterator[str]:
    records = run.outside.records
    lines = [
        f"- record {safe(r['index'])} ({safe(r['where'])}): {safe(r['exception'])}: {safe(r['message'])}"
        for r in records
    ]
    yield from _section("Data left out", lines or ["No record was left out."])
    changes = [
        f"- step {each.step:,}: {safe(each.what)}{' (taken back)' if each.is_undo else ''}: {safe(each.said)}"
        for each in run.changes
    ]
    force = changes_in_force(run)
    changes += [f"- still in force: {safe('; '.join(force))}"] if force else []
    yield from _section("Changes", changes or ["No setting of the run was changed."])
    rows = [*hardware_of(run), *run.outside.versions.items(), *run.account.pages.items()]
    yield from _section("Environment", () if rows else ["Not known yet: it is written at the end of the run."])
    if rows:
        yield from _table(("", ""), rows, safe)
    if run.outside.incomplete:
        yield from _section("What is missing here", (f"- {safe(each)}" for each in run.outside.incomplete))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    found = list(lines)
    if found:
        yield from found
        yield ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]], safe: Callable[[object], str]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(safe(cell) for cell in row) + " |"
    yield ""


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: no HTML, no emphasis, no links, nobody is called."""
    line = " ".join(text.split())
    safe = _SPECIAL.sub(r"\\\1", html.escape(line, quote=False).replace("&lt;", "<").replace("&gt;", ">"))
    safe = safe.replace("\\<", "&lt;").replace("\\>", "&gt;").replace("@", "&#64;").replace("://", ":&#47;&#47;")
    return re.sub(r"^(\d+)([.)])(?= )|^([-+=])", lambda hit: f"{hit[1]}\\{hit[2]}" if hit[1] else f"\\{hit[3]}", safe)
