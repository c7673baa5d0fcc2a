"""`heal check [PATH...] [-- COMMAND...]`: find what will fail before the GPU hours are paid for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.errors import InputError
from ...core.secrets import Masker, strip_control

if TYPE_CHECKING:
    from ...preflight.dry_run.dry_run import DryReport
    from ...preflight.options import CheckOptions
    from ...preflight.subject import Subject
    from ...preflight.tools import Tools


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH...] [-- COMMAND...]", help="Scripts and configs, and the command that runs them."),
    ] = None,
    *,
    model: Annotated[str | None, typer.Option(help="A model on the Hub or a folder.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A data set on the Hub or a folder.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU it is for: t4, l4, a10g, a100-40, h100, ..., cpu.")] = None,
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 1,
    scenario: Annotated[str, typer.Option(help="test, first-run, proven, time-critical or cost-critical.")] = "first-run",
    offline: Annotated[bool, typer.Option("--offline", help="Ask nobody outside this machine.")] = False,
    samples: Annotated[int, typer.Option(help="Look at so many records of the data set.")] = 0,
    duration_h: Annotated[float | None, typer.Option("--hours", help="How long the run will take.")] = None,
    price_per_h: Annotated[float | None, typer.Option("--price", help="What an hour costs.")] = None,
    steps: Annotated[int, typer.Option(help="Run the command for so many steps, saving and sending nothing.")] = 0,
    seconds: Annotated[float, typer.Option(help="Let such a trial take so long at most.")] = 300.0,
    fresh_env: Annotated[bool, typer.Option("--fresh-env", help="Run it in a new environment made from the script's header (implies --steps 2).")] = False,
    isolate: Annotated[bool, typer.Option("--isolate", help="Where it fails, say whether code, model, data or environment is at fault (implies --steps 2).")] = False,
    select: Annotated[list[str] | None, typer.Option(help="Make only this check; may be repeated.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave this check out; may be repeated.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Findings of severity info, and checks that could not be made, count as problems.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Write a copy of each script (train.fixed.py) with a corrected PEP 723 header.")] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="With --fix: correct the script itself.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Check a training before it is started: what it names, what it needs, whether it fits, whether it makes sense.

    Nothing of yours is run: scripts are parsed; only --steps, --fresh-env and --isolate run the command. Nothing is written except by --fix. Exit codes: 0 clean, 1 problems, 2 unusable input.
    """
    from ...preflight.rendering import lines_of
    from ...preflight.runner import chosen_checks, run_checks
    from ...preflight.subject import read_subject
    from ...preflight.tools import Tools

    given = {
        "model": model, "dataset": dataset, "gpu": gpu, "gpus": gpus, "scenario": scenario, "offline": offline,
        "samples": samples, "duration_h": duration_h, "price_per_h": price_per_h, "select": tuple(select or ()),
        "ignore": tuple(ignore or ()), "steps": steps or (2 if fresh_env or isolate else 0), "seconds": seconds,
        "fresh_env": fresh_env, "isolate": isolate,
    }  # fmt: skip
    options = _options(given)
    chosen_checks(options)  # a name that is none is told before anything is run
    paths, argv = _parts(words or [])
    if not paths and not argv and model is None and dataset is None:
        raise typer.BadParameter("there is nothing to check; name a script, a config, --model, or a command behind --")
    if in_place and not fix:
        raise typer.BadParameter("--in-place says where --fix writes; add --fix")
    if options.steps and not argv:
        argv = _command_of(paths)
    tools = Tools(options=options, environ=os.environ, cwd=Path.cwd())
    subject = read_subject(paths, argv, options, tools.cwd)
    dry = _dry_run(subject, tools) if options.steps else None
    if dry is not None and dry.hours is not None and duration_h is None:  # what was measured is known to the checks
        options = options.model_copy(update={"duration_h": dry.hours})
        subject, tools = replace(subject, options=options), replace(tools, options=options)
    report = run_checks(subject, tools)
    if dry is not None:
        report.add(dry.findings, dry.not_run)
        for line in [] if as_json else [*(f"  | {line}" for line in dry.last_lines), *dry.notes]:
            print(report.masker.text(line))
    if as_json:
        more = {} if dry is None else {"dry_run": dry.measured}
        print(json.dumps({**report.to_json(), **more}, ensure_ascii=True))
    else:
        for line in lines_of(report):
            print(line)
    has_failed = fix and not _write_fixes(subject, report.masker, in_place=in_place)
    raise typer.Exit(report.exit_code(strict=strict) or 2 * has_failed)


def _options(given: Mapping[str, object]) -> CheckOptions:
    from pydantic import ValidationError

    from ...preflight.options import CheckOptions

    try:
        return CheckOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")  # pydantic's own word for what our validators say
        raise typer.BadParameter(f"--{str(first['loc'][0]).replace('_', '-')}: {said}") from error


def _write_fixes(subject: Subject, masker: Masker, *, in_place: bool) -> bool:
    """Correct the headers, and say what was written; on standard error, so that --json stays JSON.

    Returns whether each script that is a file could be corrected; one that could not stops none of the others.
    """
    from ...preflight.packages.header_fix import NotAFile, fix_header, write_fix

    is_done = True
    for script in subject.scripts:
        try:
            fixed = fix_header(subject, script)
            if fixed is None:
                said = [f"{script.named}: the header needs no correction"]
            else:
                said = [f"wrote {os.path.relpath(write_fix(fixed, in_place=in_place))}:"]
                said += [f"    {change}" for change in fixed.changes]
        except InputError as error:
            said, is_done = [str(error)], is_done and isinstance(error, NotAFile)
        for line in said:
            print(strip_control(masker.text(line)), file=sys.stderr)
    return is_done


def _dry_run(subject: Subject, tools: Tools) -> DryReport:
    from ...preflight.dry_run.dry_run import dry_run
    from ...preflight.dry_run.trying import Interrupted

    try:
        return dry_run(subject, tools)
    except Interrupted as error:
        raise typer.Exit(128 + error.number) from error


def _command_of(paths: list[str]) -> list[str]:
    """Return the command that runs a script which is named without one."""
    scripts = [path for path in paths if path.endswith(".py")]
    if len(scripts) != 1:
        raise typer.BadParameter(
            "--steps runs a command: name it behind --, as in: heal check --steps 2 -- python train.py"
        )
    # Ours is the one to train with where torch is installed beside us; where we stand alone (pipx), that of the shell is.
    python = sys.executable if importlib.util.find_spec("torch") is not None else shutil.which("python")
    return [python or sys.executable, scripts[0]]


def _parts(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the files that are named, and the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
