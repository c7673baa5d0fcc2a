"""Read the Hugging Face `trainer_state.json`: one signal per entry of its `log_history`.

What is tolerated: numbers printed as text, NaN and Infinity, entries without a step (they count on), entries with
evaluation only, a bare list instead of the whole state. The summary that a finished run logs last (`train_loss`,
`train_runtime`) is not an observation and is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError
from ..core.signal import Fact, Facts, Metrics, Signal
from .names import RunCounter, layout_of, metrics_of, number, step_number
from .text_file import open_text, quoted

LARGEST_BYTES = 512 * 2**20
"""A state file is read whole; the largest real ones have a few hundred thousand entries and 100 MB."""

FACTS = ("max_steps", "num_train_epochs", "logging_steps", "train_batch_size", "eval_steps", "save_steps")
FEWEST_WHOLE = 3
"""Complete entries of a file that was cut off, below which there is nothing to read."""
_HISTORY = re.compile(r'"log_history"\s*+:\s*+\[|\[')
_BETWEEN = re.compile(r"[\s,]*+")
_LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second")


class CutOff(InputError):
    """A file ends in the middle: it was cut off while it was written or copied."""


class NoHistory(InputError):
    """A JSON document that is no trainer's state; `document` is what it holds."""

    def __init__(self, sentence: str, document: object) -> None:
        super().__init__(sentence)
        self.document = document


class Observation(NamedTuple):
    """One recorded signal, and which of the file's runs it belongs to."""

    run: int
    signal: Signal


def read_trainer_state(
    path: Path, head: bytes = b"", on_cut: Callable[[str], None] | None = None
) -> Iterator[Observation]:
    """Yield what a `trainer_state.json` recorded, the facts of each run first.

    Of a file that was cut off, its complete entries are read where `on_cut` is there to be told so.

    Raises:
        InputError: the file is no complete JSON, has no `log_history`, or is too large.

    """
    document = _load(path, head, on_cut)
    history = _history(document, path)
    facts = _facts(document) if isinstance(document, Mapping) else {}
    counter, step, described = RunCounter(), 0, -1
    has_loss = any("loss" in entry for entry in history)
    for entry in history:
        if _is_summary(entry, has_loss=has_loss):
            continue
        layout = layout_of(tuple(entry))
        values = metrics_of(entry, layout)
        if not values:
            continue
        recorded = step_number(entry[layout.step]) if layout.step is not None else None
        if recorded is not None:
            step = recorded
        elif "loss" in values:
            step += 1
        run = counter.count(step, values)
        if facts and run != described:
            described = run
            yield Observation(run, Facts(step=step, facts=facts))
        yield Observation(run, Metrics(step=step, values=values))


def _load(path: Path, head: bytes, on_cut: Callable[[str], None] | None) -> object:
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        raise InputError(
            f"{path}: has {size:,} bytes, more than the {LARGEST_BYTES:,} that a trainer_state.json may have here; "
            "convert its log_history to JSON lines"
        )
    with open_text(path, head) as file:
        text = file.read().strip("\0 \t\r\n")
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply for a trainer_state.json") from None
    except json.JSONDecodeError as error:
        if _is_cut(text, error):
            sentence = f"{path}: the JSON ends in the middle (line {error.lineno})"
            whole = _whole_entries(text) if on_cut is not None else []
            if on_cut is None or len(whole) < FEWEST_WHOLE:
                raise CutOff(f"{sentence}; the file was cut off while it was written or copied") from None
            steps = [step for entry in whole if (step := step_number(entry.get("step"))) is not None]
            until = f", up to step {max(steps)}," if steps else ""
            on_cut(f"{sentence}; only its {len(whole):,} complete entries{until} are judged")
            return whole
        found = quoted(text[error.pos :], 20)
        raise InputError(f"{path}: is not valid JSON: {error.msg} at line {error.lineno}, before {found}") from None


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    rest = text[error.pos : error.pos + 10]
    is_literal = bool(rest) and any(word.startswith(rest) for word in _LITERALS)
    return error.pos >= len(text) - 1 or error.msg.startswith("Unterminated") or is_literal


def _whole_entries(text: str) -> list[Mapping[str, object]]:
    """Return the entries before the place where a state, or a bare list of entries, was cut off."""
    start = _HISTORY.match(text) or _HISTORY.search(text)
    decoder, entries = json.JSONDecoder(parse_int=_integer), []
    place = start.end() if start else len(text)
    try:
        while text.startswith("{", place := _end_of(_BETWEEN, text, place)):
            entry, place = decoder.raw_decode(text, place)
            entries.append(entry)
    except (json.JSONDecodeError, RecursionError):
        pass  # the one that was cut
    return entries


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place


def _integer(text: str) -> int | float:
    """Return a whole number; one with hundreds of digits becomes a float, which may be infinite."""
    return int(text) if len(text) < 20 else float(text)


def _history(document: object, path: Path) -> list[Mapping[str, object]]:
    history = document.get("log_history") if isinstance(document, Mapping) else document
    if isinstance(history, list):
        entries = [entry for entry in history if isinstance(entry, Mapping)]
        if entries or not history:
            return entries
    if isinstance(document, Mapping):
        what = "log_history is not a list of objects" if "log_history" in document else "has no log_history"
        names = ", ".join(quoted(key, 30)[1:-1] for key in list(document)[:5])
        raise NoHistory(
            f"{path}: is JSON but no trainer_state.json: {what} (found: {names or 'nothing'}); "
            "expected a list of logged metrics under log_history",
            document,
        )
    raise NoHistory(f"{path}: is JSON but no trainer_state.json; expected an object with log_history", document)


def _facts(document: Mapping[str, object]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for name in FACTS:
        value = number(document.get(name))
        if value is not None and 0 < value < 1e15:
            facts[name] = int(value) if value == int(value) else value
    return facts


def _is_summary(entry: Mapping[str, object], *, has_loss: bool) -> bool:
    """Say whether an entry sums a finished run up; `train_loss` alone is the loss where nothing else is called so."""
    if "loss" in entry:
        return False
    return any(name in entry for name in _SUMMARY) or ("train_loss" in entry and has_loss)
