"""`heal diagnose PATH...`: what went wrong in a run, from whatever it left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...diagnosis import Finding, InputReport

MOST_FIXES = 3
"""What to try that is shown without -v."""
STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A log, trainer_state.json, ledger, CSV or JSON lines, TensorBoard events, the folder of a run, of wandb "
            "or of trackio, or - for standard input.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for an issue; paths, names and tokens are masked.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show the evidence, what else it could be, and references.")
    ] = False,
) -> None:
    """Say what went wrong in a run, why we think so, and what to do.

    Exit codes: 0 healthy or only information, 1 findings, 2 an input that cannot be used.
    """
    if as_json and as_markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    if paths.count("-") > 1:
        raise typer.BadParameter("standard input can be read only once")
    from ...diagnosis import diagnose_input, exit_code
    from ...diagnosis.privacy import Discreet
    from ..output import show_json, write

    discreet = Discreet()
    reports = [discreet.report(diagnose_input(path)) for path in paths]
    if as_json:
        show_json({"v": 1, "inputs": [report.to_json() for report in reports]}, inside_html=True)
    elif as_markdown:
        from ...diagnosis.as_markdown import as_markdown as rendered

        write(rendered(reports))
    else:
        for report in reports:
            _tell(report, verbose=verbose)
    raise typer.Exit(exit_code(reports))


def _tell(report: InputReport, *, verbose: bool) -> None:
    from ..output import show_styled

    counts = {name: sum(str(finding.severity) == name for finding in report.findings) for name in STYLES}
    told = ", ".join(
        f"{count} {name}{'s' if count > 1 and name != 'info' else ''}" for name, count in counts.items() if count
    )
    verdict = "healthy" if report.healthy else "cannot be used" if not report.is_usable else "not healthy"
    style = "green" if report.healthy else "bold red"
    show_styled(
        (f"{report.path}", "bold"), (f" ({report.format}): ", ""), (verdict, style), (f", {told}" if told else "", "")
    )
    for finding in report.findings:
        _tell_finding(finding, verbose=verbose)
    if verbose:
        for note in report.notes:
            show_styled((f"  read: {note}", "dim"))
    show_styled(("", ""))


def _tell_finding(finding: Finding, *, verbose: bool) -> None:
    from ..output import show_styled

    severity = str(finding.severity)
    place = [f"step {finding.step}"] * (finding.step is not None) + [f"line {finding.line}"] * (
        finding.line is not None
    )
    head = f" {finding.fine}" + (f" at {', '.join(place)}" if place else "") + f" ({finding.name})"
    show_styled((f"  {severity}", STYLES[severity]), (head, "bold"))
    show_styled((f"    {finding.because}", ""))
    is_short = not verbose
    if is_short and severity == "info":
        return
    for fix in finding.fix[:MOST_FIXES] if is_short else finding.fix:
        show_styled((f"    - {fix}", "green"))
    if is_short:
        if len(finding.fix) > MOST_FIXES:
            show_styled((f"    ({len(finding.fix) - MOST_FIXES} more with -v)", "dim"))
        return
    for title, items in (
        ("evidence", finding.evidence), ("also possible", finding.also_possible), ("reference", finding.references)
    ):  # fmt: skip
        for item in items:
            show_styled((f"    {title}: ", "dim"), (item, ""))
