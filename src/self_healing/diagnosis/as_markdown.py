"""A diagnosis as Markdown for an issue: names nobody, and nothing from a log is markup there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import PurePath

from .finding import Finding, InputReport
from .privacy import Discreet

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")
_TICKS = re.compile(r"`+")
_PLAIN_URL = re.compile(r"https?://[\w./#%=?-]{1,300}")


def as_markdown(reports: Iterable[InputReport], discreet: Discreet | None = None) -> str:
    """Return reports as Markdown, with paths, names and tokens masked."""
    mask = discreet or Discreet(for_others=True)
    return "\n".join("\n".join(_input(report, mask)) for report in reports).rstrip("\n") + "\n"


def _input(report: InputReport, mask: Discreet) -> Iterable[str]:
    name = PurePath(report.path.replace("\\", "/")).name or "input"
    verdict = "healthy" if report.healthy else "cannot be used" if not report.is_usable else "not healthy"
    yield f"### {escaped(mask.text(name))}: {verdict} ({escaped(report.format)})"
    yield ""
    if not report.findings:
        yield "Nothing wrong was found."
        yield ""
    for finding in report.findings:
        yield from _finding(mask.finding(finding))


def _finding(finding: Finding) -> Iterable[str]:
    place = ", ".join(
        [f"step {finding.step}"] * (finding.step is not None) + [f"line {finding.line}"] * (finding.line is not None)
    )
    where = f" at {place}" if place else ""
    yield f"**{finding.severity}: `{finding.fine}`**{where} (`{finding.name}`)"
    yield ""
    yield escaped(finding.because)
    yield ""
    if finding.evidence:
        yield from _fenced(finding.evidence)
        yield ""
    for title, items in (
        ("What to do", finding.fix), ("What else it could be", finding.also_possible), ("References", finding.references)
    ):  # fmt: skip
        if items:
            yield f"{title}:"
            yield from (f"- {escaped(item)}" for item in items)
            yield ""


def _fenced(lines: Iterable[str]) -> Iterable[str]:
    """Yield lines as a block of text whose end none of them can be taken for."""
    text = list(lines)
    longest = max((len(run) for line in text for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}text"
    yield from text
    yield fence


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: no HTML, no emphasis, no links, nobody is called."""
    if _PLAIN_URL.fullmatch(text):
        return text
    safe = _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))
    return safe.replace("@", "&#64;")
