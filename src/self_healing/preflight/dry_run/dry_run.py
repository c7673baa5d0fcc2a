"""The dry run from its start to its findings."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from ...core.errors import ConfigError
from ..check import CannotRun
from ..finding import Finding, NotRun
from ..runner import OF_A_TRIAL
from ..subject import Subject
from ..subject.started import program_of
from ..tools import Tools
from . import judging, vllm_server
from .fresh_env import NAME as FRESH_ENV
from .fresh_env import FreshPython, NotInstalled, fresh_python, look_at_uv
from .isolating import NAME as ISOLATE
from .isolating import isolate
from .rewards import NAME as REWARDS
from .rewards import completions, not_tried, reward_findings
from .trying import Bench, python_of


@dataclass
class DryReport:
    """What came of it."""

    findings: list[Finding] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    hours: float | None = None
    """How long the whole run will take, where that can be said."""
    notes: list[str] = field(default_factory=list)
    """What was measured, and completions, for people."""
    measured: dict[str, float | int | None] | None = None
    """The same numbers for programs; None where it failed."""
    last_lines: list[str] = field(default_factory=list)
    """The end of the output of a trial that failed."""


def dry_run(subject: Subject, tools: Tools) -> DryReport:
    """Run the command of the subject for a few steps.

    Raises:
        ConfigError: it cannot be started.
        Interrupted: the user has ended it; nothing is left of it.

    """
    chosen = tools.options.is_chosen
    report = DryReport()
    if not any(map(chosen, OF_A_TRIAL)):
        report.not_run.append(NotRun(judging.NAME, "--select and --ignore leave nothing of it to be looked at"))
        return report
    _run(subject, tools, report)
    if report.last_lines and not chosen(judging.NAME):  # what hides the failure must not let the rest look sound
        report.not_run.append(NotRun(REWARDS, "the dry run failed; leave dry-run among the checks to see why"))
    report.findings = [each for each in report.findings if chosen(each.check)]
    report.not_run = [each for each in report.not_run if chosen(each.check)]
    return report


def _run(subject: Subject, tools: Tools, report: DryReport) -> None:
    if subject.command is None:
        raise ConfigError("--steps runs a command: name it behind --, as in: heal check --steps 2 -- python train.py")
    if sys.platform == "win32":
        report.not_run.append(NotRun(judging.NAME, "it needs process groups, which Windows does not have; use WSL"))
        return
    if subject.starts_elsewhere:  # it would be paid for, and the limits do not reach there
        report.not_run.append(
            NotRun(
                judging.NAME,
                "the command starts the run elsewhere; name the one that is run there, such as python train.py",
            )
        )
        return
    if tools.options.is_chosen(vllm_server.NAME):
        try:
            report.findings += vllm_server.server_findings(subject, offline=tools.options.offline)
        except CannotRun as error:
            report.not_run.append(NotRun(vllm_server.NAME, str(error)))
    if report.findings:
        report.not_run.append(NotRun(judging.NAME, "the command would wait for its vLLM server; mend that first"))
        return
    with Bench(tools.environ, tools.cwd, tools.options.seconds) as bench:
        fresh = _fresh(bench, subject, tools, report)
        if fresh is not None:
            _try(bench, fresh, subject, tools, report)


def _fresh(bench: Bench, subject: Subject, tools: Tools, report: DryReport) -> FreshPython | None:
    """Return how the command is run; None where the environment that was asked for cannot be made."""
    assert subject.command is not None
    if not tools.options.fresh_env:
        return FreshPython(subject.command.argv, {}, python_of(program_of(subject.command.argv), tools.environ))
    try:
        return fresh_python(bench, subject)
    except NotInstalled as error:
        report.findings.append(error.finding)
    except CannotRun as error:
        report.not_run.append(NotRun(FRESH_ENV, str(error)))
    return None


def _try(bench: Bench, fresh: FreshPython, subject: Subject, tools: Tools, report: DryReport) -> None:
    orders = {"steps": tools.options.steps, "method": subject.method}
    trial = bench.try_out(fresh.argv, orders, fresh.environ)
    report.findings += reward_findings(trial.events, subject)
    report.not_run += not_tried(trial.events)
    if trial.succeeded:
        report.findings += judging.numbers(trial, subject)
        report.notes += [judging.summary(trial), *completions(trial.events)]
        report.measured = judging.measured(trial)
        report.hours = judging.hours(trial)
        return
    if fresh.python is None:
        try:
            look_at_uv(trial, subject)
        except NotInstalled as error:
            report.findings.append(error.finding)
            return
        except CannotRun as error:
            report.not_run.append(NotRun(FRESH_ENV, str(error)))
            return
    report.findings.append(judging.failure(trial, subject, bench.keep(trial)))
    report.last_lines = trial.last_lines()
    if tools.options.isolate and tools.options.is_chosen(ISOLATE):
        try:
            report.findings += isolate(bench, fresh, orders, subject, trial, offline=tools.options.offline)
        except CannotRun as error:
            report.not_run.append(NotRun(ISOLATE, str(error)))
