"""Some records of the data a training will see: from a trainer that is built, or from local files."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..check import CannotRun
from ..finding import Place
from ..subject import Call, Kind, Reference, Subject
from ..tools import Tools
from .arguments import Training
from .fetched import fetching
from .looks import changes_data

MOST = 64
LARGEST_BYTES = 64 << 20
"""How much of a file is read; a JSON file that is larger is not, since it has to be read as a whole."""
LONGEST_LINE = 16 << 20
LARGEST_GROUP_BYTES = 1 << 30
"""Of the first part of a Parquet file, of which a column is read as a whole."""
SUFFIXES = frozenset({".jsonl", ".json", ".ndjson", ".csv", ".parquet"})
_FORMATS = frozenset({"json", "csv", "parquet", "text"})


@dataclass(frozen=True)
class Rows:
    """Records of one data set, as they are before they are prepared."""

    rows: tuple[Mapping[str, Any], ...]
    place: Place
    named: str

    @property
    def columns(self) -> frozenset[str]:
        """The columns of all records."""
        return frozenset(name for row in self.rows for name in row)


def rows_of(trainings: Sequence[Training], subject: Subject, tools: Tools) -> list[Rows]:
    """Return the records that can be looked at, where they are those that one training sees.

    Raises:
        CannotRun: records are there, but not known to be those that are trained on; or none of them is here.

    """
    if not trainings:
        return []
    change = changes_data(trainings[0]) if len(trainings) == 1 else None
    if change is None and len(trainings) == 1:
        return sample_rows(subject, tools)
    looked_at = _named_records(subject, tools)
    if not looked_at:
        return []
    if change is None:
        places = " and ".join(str(training.place) for training in trainings)
        why = f"{places} configure a training each, and which of them the records of {looked_at} are for is not known"
    else:
        script = trainings[0].script
        assert script is not None
        what = f"{change.last}(...) in {Place(script.named, change.line)}"
        why = f"{what} makes other records of those of {looked_at}"
    raise CannotRun(f"{why}; SelfHealingTrainer(trainer).check() looks at those that reach the trainer")


def sample_rows(subject: Subject, tools: Tools) -> list[Rows]:
    """Return the records that can be looked at.

    Raises:
        CannotRun: a data set is named, but none of its records is here.

    """
    found = local_rows(subject, tools)
    named = _data_sets(subject)
    if found or not named:
        return found
    if tools.options.offline or not tools.options.samples:
        raise CannotRun("no records of the data set are here; use SelfHealingTrainer.check(), or --samples 64")
    on_their_way = [(each, fetching(each, tools.options.samples)) for each in named]
    fetched = [(each, records.rows()) for each, records in on_their_way]
    return [Rows(tuple(rows), each.place, each.name) for each, rows in fetched if rows]


def _named_records(subject: Subject, tools: Tools) -> str:
    """Return the name of a data set of which there are records here, or would be; empty where there is none."""
    is_fetched = bool(tools.options.samples) and not tools.options.offline
    on_the_hub = [each.name for each in _data_sets(subject)] if is_fetched else []
    return next(iter([each.named for each in local_rows(subject, tools)] + on_the_hub), "")


def _data_sets(subject: Subject) -> list[Reference]:
    return [each for each in subject.references if each.kind is Kind.DATASET and each.name not in _FORMATS]


def local_rows(subject: Subject, tools: Tools) -> list[Rows]:
    """Return some records of each local file of training data that is named."""
    most = min(tools.options.samples or MOST, 10_000)
    found = []
    for named, place in _files(subject).items():
        rows = read_rows(tools.cwd / named, most)
        if rows:
            found.append(Rows(tuple(rows), place, named))
    return found


def _files(subject: Subject) -> dict[str, Place]:
    """Return the files of training data that are named."""
    files: dict[str, Place] = {}
    for reference in subject.references:
        if reference.kind is Kind.DATASET and Path(reference.name).suffix.lower() in SUFFIXES:
            files.setdefault(reference.name, reference.place)
    for script in subject.scripts:
        for call in script.calls_of("load_dataset"):
            for name, line in _data_files(call):
                files.setdefault(name, Place(script.named, line))
    for config in subject.configs:
        for value in config.values:
            is_data = value.path[0] == "datasets" and value.path[-1] in ("path", "data_files")
            if is_data and isinstance(value.value, str) and Path(value.value).suffix.lower() in SUFFIXES:
                files.setdefault(value.value, Place(config.named, value.line, ".".join(value.path)))
    return files


def _data_files(call: Call) -> Iterator[tuple[str, int]]:
    kind, given = call.given(0, "path"), call.keywords.get("data_files")
    if kind is None or kind.value not in _FORMATS or given is None:
        return
    values = given.value
    if isinstance(values, Mapping):
        values = values.get("train")
    for each in values if isinstance(values, list | tuple) else [values]:
        if isinstance(each, str):
            yield each, given.line


def read_rows(path: Path, most: int) -> list[Mapping[str, Any]]:
    """Return the first records of a file; none where it cannot be read: another check speaks of that."""
    readers: dict[str, Callable[[Path, int], list[Any]]] = {
        ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    try:
        rows = reader(path, most) if reader is not None and path.is_file() else []
    except (OSError, ValueError, RecursionError, csv.Error):
        return []
    return [row for row in rows if isinstance(row, Mapping)]


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file up to the limit.

    Raises:
        ValueError: one is longer than what anybody trains on, so it is no file of records.

    """
    left = LARGEST_BYTES
    while left > 0 and (line := file.readline(LONGEST_LINE)):
        if len(line) == LONGEST_LINE and not line.endswith(("\n", "\r")):
            raise ValueError("a line is too long to be a record")
        left -= len(line)
        yield line


def _json_lines(path: Path, most: int) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        lines = (line for line in _lines(file) if line.strip())
        return [json.loads(line) for line in itertools.islice(lines, most)]


def _json(path: Path, most: int) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        first = file.readline(LONGEST_LINE)
        if first.startswith("{") and first.rstrip().endswith("}") and len(first) < LONGEST_LINE:
            return _json_lines(path, most)
        if path.stat().st_size > LARGEST_BYTES:
            return []
        file.seek(0)
        loaded = json.loads(file.read(LARGEST_BYTES))
    if isinstance(loaded, dict):
        loaded = loaded.get("data", loaded.get("train", []))
    return list(itertools.islice(loaded, most)) if isinstance(loaded, list) else []


def _csv(path: Path, most: int) -> list[Any]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(itertools.islice(csv.DictReader(_lines(file)), most))


def _parquet(path: Path, most: int) -> list[Any]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")  # only where there is such a file
    except ImportError:
        return []
    with parquet.ParquetFile(path) as file:
        if file.num_row_groups and file.metadata.row_group(0).total_byte_size > LARGEST_GROUP_BYTES:
            return []
        batch = next(file.iter_batches(batch_size=most), None)
    return list(batch.to_pylist()) if batch is not None else []
