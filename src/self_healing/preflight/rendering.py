"""How findings are shown: like a linter, a line each with its fix below."""

from __future__ import annotations

from ..core.secrets import strip_control
from .runner import CheckReport


def lines_of(report: CheckReport) -> list[str]:
    """Return the report as text, without colours and without anything that could move a terminal."""
    lines = []
    for found in report.findings:
        lines.append(f"{found.where}: {found.severity}: {found.message} [{found.check}]")
        first, *further = found.fix.split("\n")
        lines += [f"    fix: {first}", *(f"         {line}".rstrip() for line in further)]  # below the first word
    lines += [f"{note.where}: note: {note.message} [{note.check}]" for note in report.notes]
    because: dict[str, list[str]] = {}
    for each in report.not_run:
        because.setdefault(each.because, []).append(each.check)
    lines += [f"not run: {', '.join(checks)}: {reason}" for reason, checks in because.items()]
    counts = ", ".join(
        f"{sum(str(found.severity) == name for found in report.findings)} {name}s" for name in ("error", "warning")
    )
    lines.append(
        f"{counts}, {len(report.not_run)} checks not run" if report.findings or report.not_run else "nothing found"
    )
    return [strip_control(line) for line in lines]
