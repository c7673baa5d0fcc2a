"""Read the metrics of one line of a log, in whatever form the program printed them.

One expression finds every number with the words before it, whether they are a quoted name (`'loss': '2.98'`), a path
(`actor/grad_norm:0.3`), `key=value`, or prose (`train loss 2.45`); `log_names` says what they mean. It reads a line once:
every repetition is possessive or bounded, and a name can only begin where a word does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .log_names import BECOMES_EVAL, OUTCOMES, VAGUE, Kind, Meaning, meaning_of_name, meaning_of_words
from .metrics_table import parsed
from .names import number, step_number

MOST_PAIRS = 512
"""Numbers of one line that are looked at."""

_NUMBER = (
    r"[-+]?+(?:(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?+\d++)?+|[nN][aA][nN]|[iI]nf(?:inity)?+|INF)"
    r"(?!\w|\.\d|:\d|-\d)"  # no time, date, version, or number with a unit
)
_WORD = r"[A-Za-z_][\w./@-]*+"
_NEXT_WORD = rf" (?!(?:[nN][aA][nN]|[iI]nf(?:inity)?+|INF)(?![\w./@-])){_WORD}"  # `train loss nan` ends in a number
_PAIR = re.compile(
    rf"(?<![\w./@-])({_WORD}(?:{_NEXT_WORD}){{0,2}}+)(['\"]?+)[ \t]{{0,12}}+([:=]?+)[ \t]{{0,12}}+"
    rf"['\"(\[]?+(?:tensor\(|array\(|(?:np|numpy)\.float\d\d\()?+({_NUMBER})",
    re.ASCII,
)
_AT = re.compile(r" (?:at|after|@)(?: (?:step|iter|iteration|epoch))?+$", re.ASCII | re.IGNORECASE)
_AFTER = re.compile(rf"[:,]?+[ \t]{{1,12}}+({_NUMBER})", re.ASCII)
_PLACE = re.compile(
    r"(?:(?<![\d.])(?=\d{1,12}+/\d{1,12}+ \[)|^[ ]{0,8}+(?=\d{1,12}+/\d{1,12}+ (?:\u2501|- \d)))(\d++)/(\d++)", re.ASCII
)
"""Where tqdm (`10/100 [`) and Keras (`10/100 [`, a line, or `- 12s`) say how far they are."""
_HELD_OUT = re.compile(
    r"(?<![\w.])(?:saving dict for|eval|evaluation|evaluating|val|valid|validation|validating)(?![\w.])"
    r"|(?<![\w./-])(?:test|testing|dev)(?: (?:set|epoch|results?|metrics))?+[ ]?+[:|\])]",  # test alone may be a name
    re.IGNORECASE,
)
_RECORD = re.compile(r"(?<![\w.])(?:best|final|lowest|improved|previous|target)(?!\w)", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[\[(<])(?:global |local )?rank[ :=_-]?(\d{1,5}+)\b", re.IGNORECASE)
_RANK_ROOM = 64
_CONTEXT = 48
_DEEPEST = 3
_SUMMARY = "train_runtime"


class Place(NamedTuple):
    """Where a progress bar stands: so many of so many."""

    done: int
    of: int


@dataclass(frozen=True, slots=True)
class MetricLine:
    """What one line says: metrics by canonical name, and where in the run it was printed."""

    values: Mapping[str, float] = field(default_factory=dict)
    """Empty where the line only says where the run is (`Epoch 2/10`, a bare progress bar)."""
    step: int | None = None
    epoch: float | None = None
    place: Place | None = None
    rank: int | None = None
    is_entry: bool = False
    """Printed as a dict or JSON: a whole entry of a log, not prose."""


@dataclass(slots=True)
class _Found:
    """What has been found so far."""

    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    batch: int | None = None
    epoch: float | None = None
    is_entry: bool = False
    first: int = -1
    """Where in the line the first metric begins."""

    def add(self, meaning: Meaning, value: float, start: int) -> None:
        kind, name = meaning
        if kind is Kind.METRIC:
            if name not in self.values:
                self.values[name] = value
                if self.first < 0:
                    self.first = start
        elif kind is Kind.EPOCH:
            if self.epoch is None and 0 <= value < math.inf:
                self.epoch = value
        elif kind is Kind.STEP:
            self.step = step_number(value) if self.step is None else self.step
        elif kind is Kind.BATCH:
            self.batch = step_number(value) if self.batch is None else self.batch


def parse_line(line: str) -> MetricLine | None:
    """Return what a clean line says of metrics, step and epoch; None where it says nothing of them.

    Example:
        >>> parse_line("{'loss': '2.98', 'grad_norm': 0.24, 'epoch': 0.1}").values
        {'loss': 2.98, 'grad_norm': 0.24, 'epoch': 0.1}
        >>> found = parse_line("step 250: train loss 2.45, val loss 2.50")
        >>> found.step, found.values
        (250, {'loss': 2.45, 'eval_loss': 2.5})
    """
    found = _of_json(line) if line.startswith("{") and '"' in line else None
    if found is None:
        found = _of_text(line)
    place = _place_of(line)
    values = _sifted(found, line)
    step = found.step if found.step is not None or place is not None else found.batch
    if not values and found.epoch is None and place is None:
        return None
    if found.is_entry and found.epoch is not None and values:
        values["epoch"] = found.epoch
    return MetricLine(values, step, found.epoch, place, _rank_of(line), found.is_entry)


def _of_json(line: str) -> _Found | None:
    row = parsed(line)
    if row is None:
        return None
    found = _Found(is_entry=True)
    for name, value in _flat(row):
        amount = number(value)
        if amount is not None:
            found.add(meaning_of_name(name), amount, 0)
    return found if found.values else None


def _flat(row: Mapping[str, object], above: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the items of nested objects under paths such as `train/loss`; an object called `metrics` is no part of it."""
    for key, value in row.items():
        if isinstance(value, dict):
            if depth < _DEEPEST:
                inner = above if key in ("metrics", "log", "data") else f"{above}{key}/"
                yield from _flat(value, inner, depth + 1)
        else:
            yield above + key, value


def _of_text(line: str) -> _Found:
    found = _Found()
    for pair in islice(_PAIR.finditer(line), MOST_PAIRS):
        words, quote, separator, text = pair.groups()
        if quote and separator:
            found.is_entry = True
            found.add(meaning_of_name(words), float(text), pair.start())
        elif not separator and (at := _AT.search(words)):
            _add_at(found, line, pair, at.start())
        else:
            found.add(meaning_of_words(words), float(text), pair.start())
    return found


def _add_at(found: _Found, line: str, pair: re.Match[str], end: int) -> None:
    """Read `loss at step 404: 1.79`: the first number is the step, the second the metric."""
    value = _AFTER.match(line, pair.end())
    meaning = meaning_of_words(pair[1][:end])
    if value is None or meaning.kind is not Kind.METRIC:
        return
    where = "epoch" if "epoch" in pair[1].lower() else "step"
    found.add(meaning_of_words(where), float(pair[4]), pair.start())
    found.add(meaning, float(value[1]), pair.start())


def _sifted(found: _Found, line: str) -> dict[str, float]:
    """Return the metrics that a run logged; none where the line tells of a record, a setting or a finished run."""
    values = found.values
    if _SUMMARY in values:  # the summary of a run that is over: its loss is a mean over all of it
        values = {name: value for name, value in values.items() if name.startswith("eval_")}
    if "loss" not in values and not _shows_training(found, values):
        return {}
    if found.is_entry and found.first <= 2:  # nothing stands before it
        return values
    context = line[max(0, found.first - _CONTEXT) : found.first]
    if not found.is_entry and (_RECORD.search(context) or _RECORD.match(line, found.first)):
        return {}
    if _HELD_OUT.search(context):
        return {f"eval_{name}" if name in BECOMES_EVAL else name: value for name, value in values.items()}
    return values


def _shows_training(found: _Found, values: Mapping[str, float]) -> bool:
    is_placed = found.step is not None or found.epoch is not None or found.batch is not None
    return any(name.startswith("eval_") or (name in OUTCOMES and (is_placed or name not in VAGUE)) for name in values)


def _place_of(line: str) -> Place | None:
    hit = _PLACE.search(line) if "/" in line else None
    return None if hit is None else Place(int(hit[1]), int(hit[2]))


def _rank_of(line: str) -> int | None:
    if "rank" not in line and "RANK" not in line and "Rank" not in line:
        return None
    hit = _RANK.search(line, 0, _RANK_ROOM)
    return None if hit is None else int(hit[1])
