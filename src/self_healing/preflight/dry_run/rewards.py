"""What the reward functions of a trial have said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...core.failure import Severity
from ...diagnosis.text_finding import shown
from ..finding import Finding, NotRun, Place
from ..subject import Subject
from .events import Events

NAME = "reward-function"
SHOWN = 3


def reward_findings(events: Events, subject: Subject) -> Iterator[Finding]:
    """Yield what is wrong with reward functions."""
    for each in events.of("reward columns"):
        missing = ", ".join(each["missing"])
        yield _finding(
            Severity.ERROR, subject, each["function"],
            f"{each['function']} needs {missing}, and the data set that reaches the trainer has only {', '.join(each['columns'])}",
            f"Keep the column in map(..., remove_columns=[...]) and select_columns([...]), or give the parameter a default: {each['missing'][0]}=None",
        )  # fmt: skip
    by_function: dict[str, list[Mapping[str, Any]]] = {}
    for each in events.of("reward"):
        by_function.setdefault(each["function"], []).append(each)
    for name, calls in by_function.items():
        yield from _of_function(name, calls, subject)


def not_tried(events: Events) -> Iterator[NotRun]:
    """Yield why functions were not called with answers that are known to be right, each reason once."""
    names: dict[str, dict[str, None]] = {}
    for each in events.of("reward not tried"):
        names.setdefault(_why_not(each), {})[each["function"]] = None
    for why, functions in names.items():
        yield NotRun(NAME, f"{', '.join(functions)}: {why}")


def _why_not(skipped: Mapping[str, Any]) -> str:
    if skipped["why"] == "async":
        return "neither called with known answers nor listened to, because it is async; call it in a Python shell with some rows"
    if skipped["why"] == "no rows":
        return "not called with known answers: the data set that reaches the trainer has no rows"
    has = f"the data set that reaches the trainer has only {', '.join(skipped['columns'])}"
    if skipped["why"] == "prompt":
        return f"not called with known answers: there is no column prompt; {has}"
    return f"not called with known answers: no column holds them as texts ({', '.join(skipped['wanted'])}); {has}"


def completions(events: Events) -> list[str]:
    """Return the first completions of a trial, to be read by a person."""
    texts = [shown(each["text"], 200) for each in events.of("completion")[:SHOWN]]
    return [f'completion {place}: "{text}"' for place, text in enumerate(texts, 1)]


def _of_function(name: str, calls: list[Mapping[str, Any]], subject: Subject) -> Iterator[Finding]:
    raised = next((each for each in calls if each.get("error")), None)
    if raised is not None:
        yield _finding(
            Severity.ERROR, subject, name, f"{name} raises {_about(raised)}: {shown(raised['error'], 300)}",
            f"Call it in a Python shell with the same rows, mend it, and have it return a number for each: {name}(prompts=[...], completions=[...])",
        )  # fmt: skip
        return
    other = next((each for each in calls if "returned" in each), None)
    if other is not None:
        yield _finding(
            Severity.ERROR, subject, name, f"{name} returns {shown(other['returned'], 300)} {_about(other)}, and not a list with a number for each completion",
            "End it with such a list, as in: return [1.0 if is_right(each) else 0.0 for each in completions]",
        )  # fmt: skip
        return
    bad = next((each for each in calls if any(_is_nan(value) for value in each["values"])), None)
    if bad is not None:
        yield _finding(
            Severity.ERROR, subject, name, f"{name} gives NaN {_about(bad)}: {bad['values'][:8]}",
            "Return 0.0, or None for a row that is not to be judged, where a division by zero or an empty answer gives NaN",
        )  # fmt: skip
        return
    answers = [value for each in calls if each["of"] == "answers" for value in each["values"] if value is not None]
    heard = [value for each in calls if each["of"] == "completions" for value in each["values"] if value is not None]
    if answers and not any(answers):
        column = next(each["column"] for each in calls if each["of"] == "answers")
        yield _finding(
            Severity.WARNING, subject, name, f"{name} gives 0 to all {len(answers)} answers of the data set itself (column {column}) taken as completions",
            "If the function wants a format (tags, a box) that the column lacks, this is as it should be; otherwise mend how it reads answers, or nothing can be learned",
        )  # fmt: skip
    elif heard and not any(heard):
        yield _finding(
            Severity.INFO if any(answers) else Severity.WARNING, subject, name,
            f"{name} gives 0 to all {len(heard)} completions of the dry run",
            "Compare it with the completions shown: a task of which nothing is ever solved teaches nothing; begin with easier rows or reward parts of an answer",
        )  # fmt: skip


def _about(call: Mapping[str, Any]) -> str:
    return f"on the answers in column {call['column']}" if call["of"] == "answers" else "on completions of the dry run"


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)


def _finding(severity: Severity, subject: Subject, function: str, message: str, fix: str) -> Finding:
    """Return a finding at the line that defines a function, where it is one of a script."""
    where = Place("command", key="--steps")
    for script in subject.scripts:
        for line, text in enumerate(script.text.split("\n"), 1):
            if text.strip().startswith((f"def {function}(", f"async def {function}(")):
                where = Place(script.named, line)
    return Finding(check=NAME, severity=severity, where=where, message=message, fix=fix)
