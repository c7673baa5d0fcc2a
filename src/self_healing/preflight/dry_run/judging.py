"""What a trial says of the run: its failure with the diagnosis, numbers that are wrong, and how long it will take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ...core.failure import Severity
from ...diagnosis.text_finding import shown
from ...supervisor.outcome import EndedBy
from ..finding import Finding, Place
from ..subject import Subject
from ..surroundings.here import gib
from .trying import Trial

NAME = "dry-run"
LONG_H = 0.4
"""From there on it matters that jobs on the Hub get half an hour unless they ask for more."""
_AT = re.compile(r'File "([^"\n]{1,500})", line (\d{1,7})')
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Warning)\b(?!\()")
"""The line that a traceback ends in; a line of code that raises says less."""
_ZERO_AT_FIRST = ("GRPO", "RLOO", "PPO")
"""Trainers whose loss is 0 in the first step of a sound run: the policy is then its own reference."""


def _finding(severity: Severity, where: Place, message: str, fix: str) -> Finding:
    return Finding(check=NAME, severity=severity, where=where, message=message, fix=fix)


def failure(trial: Trial, subject: Subject, kept: Path) -> Finding:
    """Return what a trial that failed has died of."""
    outcome = trial.outcome
    where = place_of(trial, subject)
    if outcome.attempt.ended_by is EndedBy.TIME_LIMIT:
        return _finding(
            Severity.WARNING, where, f"the dry run made no step within {trial.most_s:g} s",
            f"Read {kept} for what it waits for; where loading takes so long, give it more time: --seconds 1800",
        )  # fmt: skip
    told = [line for line in (*outcome.evidence, *reversed(trial.last_lines())) if _RAISED.match(line.strip())]
    decisive = (
        f": {shown(told[0].strip(), 300)}"
        if told
        else f": {shown(outcome.evidence[-1], 300)}"
        if outcome.evidence
        else ""
    )
    fixes = [fix.rstrip(".") for fix in outcome.fixes[:2]]
    fix = "; or: ".join([*fixes, f"the whole output is in {kept}"]) if fixes else f"Read the whole output: {kept}"
    return _finding(
        Severity.ERROR, where, f"the dry run failed ({outcome.fine}): {_first_sentence(outcome.says)}{decisive}", fix
    )


def _first_sentence(text: str) -> str:
    """Return what happened; why we think so stands in the line that follows it."""
    return text.partition(". ")[0].rstrip(".")


def place_of(trial: Trial, subject: Subject) -> Place:
    """Return the line of the user's own script that the last traceback names, else the command."""
    try:
        text = trial.log.read_bytes()[-(1 << 20) :].decode("utf-8", errors="replace")
    except OSError:
        text = ""
    own = {str(script.path.resolve()): script.named for script in subject.scripts}
    for path, line in reversed(_AT.findall(text)):
        named = own.get(str(Path(path).resolve())) or next((n for n in own.values() if n == path), None)
        if named is not None:
            return Place(named, int(line))
    return Place("command", key=" ".join(subject.command.argv[:3])) if subject.command is not None else Place("command")


def numbers(trial: Trial, subject: Subject) -> Iterator[Finding]:
    """Yield what is wrong with the numbers of a trial that ended well."""
    where = place_of(trial, subject)
    losses, norms = trial.events.numbers("loss"), trial.events.numbers("grad_norm")
    if any(math.isnan(value) or math.isinf(value) for value in (*losses, *norms)):
        name = "loss" if any(not math.isfinite(value) for value in losses) else "gradient norm"
        yield _finding(
            Severity.ERROR, where, f"the {name} is not a number in the first {len(losses)} steps",
            "Try bf16=True in place of fp16, a learning rate ten times lower, and look for rows whose labels are all masked (-100)",
        )  # fmt: skip
        return
    kind = next((each.get("trainer", "") for each in trial.events.of("begin")), "")
    if losses and not any(losses) and not kind.startswith(_ZERO_AT_FIRST):
        yield _finding(
            Severity.ERROR, where, f"the loss is exactly 0 in all {len(losses)} steps: nothing is learned",
            "Look at the labels of one batch: trainer.train_dataset[0]; all -100 means that everything is masked (chat template, max_length, completion_only_loss)",
        )  # fmt: skip
    elif norms and not any(norms) and not kind.startswith(_ZERO_AT_FIRST):
        yield _finding(
            Severity.ERROR, where, f"the gradient is exactly 0 in all {len(norms)} steps: nothing is learned",
            "Check that something is trainable: sum(p.numel() for p in model.parameters() if p.requires_grad)",
        )  # fmt: skip


def hours(trial: Trial) -> float | None:
    """Return how long the whole run will take."""
    step_s, planned = trial.events.step_s, trial.events.planned_steps
    return None if step_s is None or planned is None else step_s * planned / 3600


def measured(trial: Trial) -> dict[str, float | int | None]:
    """Return what a sound trial has measured, as `--json` prints it."""
    events = trial.events
    return {
        "steps": len(events.steps) or trial.outcome.attempt.step or 0, "seconds": round(trial.outcome.attempt.seconds, 3),
        "seconds_per_step": events.step_s, "planned_steps": events.planned_steps, "hours": hours(trial),
        "gpu_bytes": events.peak("gpu_bytes"), "host_bytes": events.peak("host_bytes"),
    }  # fmt: skip


def summary(trial: Trial) -> str:
    """Return the same as a sentence."""
    attempt, events = trial.outcome.attempt, trial.events
    count = len(events.steps) or attempt.step or 0
    did = f"made {count} step{'s' if count != 1 else ''}" if count else "ended well, without a step that could be seen,"
    told = [f"the dry run {did} in {attempt.seconds:.0f} s"]
    if events.step_s is not None:
        told.append(f"{events.step_s:.3g} s per step")
    for name, what in (("gpu_bytes", "GPU"), ("host_bytes", "host")):
        peak = events.peak(name)
        if peak is not None:
            told.append(f"{gib(peak)} of {what} memory at most")
    whole = hours(trial)
    if whole is not None:
        told.append(f"the {events.planned_steps} planned steps take about {_duration(whole)}")
        if whole >= LONG_H:
            told.append(f"so a job needs a time limit of {_duration(whole * 1.3)} at least")
    return ", ".join(told)


def _duration(hours_: float) -> str:
    if hours_ >= 1:
        return f"{hours_:.1f} h"
    return f"{hours_ * 60:.0f} min" if hours_ >= 1 / 60 else f"{hours_ * 3600:.0f} s"
