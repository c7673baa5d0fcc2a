"""Reward functions: called on rows whose answers are known, and listened to while the run is tried out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import islice
from typing import Any

from .telling import event

ROWS = 4
MOST_CALLS = 3
SHOWN = 3
LONGEST = 300
_ALWAYS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
"""What TRL gives besides the columns of the data set."""
_NO_COLUMNS = frozenset({"prompt", "completion", "completion_ids"})
"""What TRL gives under another name."""
_ANSWERS = ("completion", "answer", "solution", "ground_truth", "target", "response", "output", "chosen")


def look_at(trainer: Any) -> None:
    """Try the reward functions of a trainer that has some, and listen to them from now on."""
    functions = getattr(trainer, "reward_funcs", None)
    if not isinstance(functions, list):
        return
    rows = _rows(trainer.train_dataset)
    columns = sorted({name for row in rows for name in row})
    for place, function in enumerate(functions):
        if hasattr(function, "parameters") or not callable(function):  # a model
            continue
        name = getattr(function, "__name__", type(function).__name__)
        missing = _missing(function, columns)
        if missing:
            event("reward columns", function=name, missing=missing, columns=columns)
        if inspect.iscoroutinefunction(function):
            event("reward not tried", function=name, why="async")
            continue
        if not missing:
            _try(function, name, rows, trainer)
        functions[place] = _heard(function, name)


def _rows(data: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in islice(iter(data), ROWS)]


def _missing(function: Callable[..., Any], columns: list[str]) -> list[str]:
    given = _ALWAYS | (set(columns) - _NO_COLUMNS)
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in given
    ]


def _try(function: Callable[..., Any], name: str, rows: list[dict[str, Any]], trainer: Any) -> None:
    """Call it with the data set's own answers as completions."""
    answer = next((each for each in _ANSWERS if rows and isinstance(rows[0].get(each), str)), None)
    if answer is None or not all("prompt" in row for row in rows):
        why = "no rows" if not rows else "answers" if answer is None else "prompt"
        event(
            "reward not tried",
            function=name,
            why=why,
            columns=sorted({column for row in rows for column in row}),
            wanted=_ANSWERS,
        )
        return
    is_talk = isinstance(rows[0]["prompt"], list)
    texts = [str(row[answer]) for row in rows]
    given: dict[str, Any] = {
        column: [row.get(column) for row in rows] for column in rows[0] if column not in _NO_COLUMNS
    }
    given |= {
        "prompts": [row["prompt"] for row in rows],
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if is_talk else texts,
        "completion_ids": [[0] for _ in rows], "trainer_state": trainer.state,
        "log_extra": lambda *_: None, "log_metric": lambda *_: None,
    }  # fmt: skip
    taken = inspect.signature(function).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        given = {key: value for key, value in given.items() if key in taken}
    try:
        values = function(**given)
    except Exception as error:  # noqa: BLE001  # the user's function: what it raises is the finding
        event("reward", function=name, of="answers", column=answer, error=f"{type(error).__name__}: {error}")
        return
    event("reward", function=name, of="answers", column=answer, **_told(values))


def _heard(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the same function, whose first calls are noted."""
    calls = 0

    @functools.wraps(function)
    def heard(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            return function(*args, **kwargs)
        if calls == 1:
            for text in list(kwargs.get("completions", ()))[:SHOWN]:
                event("completion", text=_text(text)[:LONGEST])
        try:
            values = function(*args, **kwargs)
        except Exception as error:
            event("reward", function=name, of="completions", error=f"{type(error).__name__}: {error}")
            raise
        event("reward", function=name, of="completions", **_told(values))
        return values

    return heard


def _told(values: Any) -> dict[str, Any]:
    """Return the numbers that a function gave; where they are none, what it gave in their place."""
    try:
        return {"values": [None if value is None else float(value) for value in values]}
    except (TypeError, ValueError):
        return {"returned": repr(values)[:LONGEST]}


def _text(completion: Any) -> str:
    if isinstance(completion, list):
        return " ".join(str(part.get("content", part)) if isinstance(part, dict) else str(part) for part in completion)
    return str(completion)
