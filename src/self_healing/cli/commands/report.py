"""`heal report RUN_DIR`: the story of a run as one page that opens from disk, or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="The directory of a run, with a folder healing/ in it.")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write here; - is standard output. Default: RUN_DIR/healing/report.html.",
        ),
    ] = None,
    as_markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Markdown for an issue, printed unless -o is given; paths, names and tokens are masked."
        ),
    ] = False,
) -> None:
    """Write the story of a run: what happened, why, what was done about it, and what it cost.

    One HTML file that needs no network. Works while the run goes on, too. Exit codes: 0 written, 2 nothing that can be read.
    """
    from ...report.run_files import read_run, run_directory
    from ..output import show, warn, write

    folder = run_directory(run_dir)
    run = read_run(folder)
    if as_markdown:
        from ...diagnosis.privacy import Discreet
        from ...report.as_markdown import as_markdown as rendered

        text = rendered(run, Discreet(for_others=True).text)
        target = None if output in (None, "-") else Path(str(output))
    else:
        from ...report.charts import has_matplotlib
        from ...report.page import page_of

        text = page_of(run)
        target = None if output == "-" else Path(output) if output else _in_the_run(folder)
        if not has_matplotlib():
            warn("the report has no curves: they need matplotlib (pip install 'self-healing-training[report]')")
    if target is None:
        write(text)
        return
    _put(target, text)
    show(str(target))


def _in_the_run(folder: Path) -> Path:
    from ...core.errors import InputError
    from ...core.run_directory import healing_folder

    place = healing_folder(folder)
    if place.is_symlink():
        raise InputError(f"{place}: is a symbolic link, which is not followed; name a file with -o")
    return place / "report.html"


def _put(target: Path, text: str) -> None:
    from ...core.errors import InputError
    from ...report.write import replace_file

    try:
        replace_file(target, text.encode("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{target}: the report cannot be written: {reason}; name another file with -o") from error
