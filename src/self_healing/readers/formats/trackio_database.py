"""The format `trackio-database`: the SQLite file in which trackio keeps a project's runs."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from ...core.errors import InputError
from ...core.signal import Metrics
from ..metrics_table import parsed
from ..names import layout_of, metrics_of, step_number
from ..source import Candidate, InputFormat, Item, Reading, Seen

MOST_RUNS = 20
"""Runs of a project that are looked at, the newest."""
MOST_WORK = 20_000
"""Thousands of instructions that a query may take: a database of somebody else's may hold a view without an end."""
_MAGIC = b"SQLite format 3\0"
_LARGEST_BYTES = 2 * 2**30


class TrackioDatabase(InputFormat):
    """What trackio keeps of a project on disk."""

    order = 9

    def knows(self, candidate: Candidate) -> bool:
        """Take every SQLite file; whether it is one of trackio's is seen inside."""
        return not candidate.is_stdin and candidate.head.startswith(_MAGIC)

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield the observations run by run."""
        with _opened(candidate) as database:
            try:
                yield from _runs(database, candidate.name)
            except sqlite3.Error as error:
                raise InputError(f"{candidate.name}: the database cannot be read ({error})") from None


def _runs(database: sqlite3.Connection, name: str) -> Iterator[Seen]:
    columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    if not {"run_name", "step", "metrics"} <= columns:
        raise InputError(f"{name}: is an SQLite database without trackio's table of metrics")
    key = "run_id" if "run_id" in columns else "run_name"
    # The column is one of two words of ours, and the run is passed as a value.
    newest = f"SELECT {key}, MAX(rowid) AS last FROM metrics GROUP BY {key} ORDER BY last DESC LIMIT ?"  # noqa: S608
    of_run = f"SELECT step, metrics FROM metrics WHERE {key} = ? ORDER BY rowid"  # noqa: S608
    runs = [row[0] for row in database.execute(newest, (MOST_RUNS,))][::-1]
    for number, run in enumerate(runs):
        for step, text in database.execute(of_run, (run,)):
            row = parsed(text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text))
            if row is None:
                continue
            layout = layout_of(tuple(row))
            values = metrics_of(row, layout)
            if not values:
                continue
            own = step_number(row[layout.step]) if layout.step is not None else None
            yield Seen(number, Metrics(step=own if own is not None else step_number(step) or 0, values=values))


@contextmanager
def _opened(candidate: Candidate) -> Iterator[sqlite3.Connection]:
    """Open a database so that nothing beside it is written: one that is still in use is copied first."""
    log = candidate.path.with_name(candidate.path.name + "-wal")
    with tempfile.TemporaryDirectory(prefix="heal-") as folder:
        path = candidate.path
        try:
            if log.is_file() and log.stat().st_size:
                if candidate.size > _LARGEST_BYTES:
                    raise InputError(f"{candidate.name}: is in use and too large to copy; end the run first")
                path = Path(folder) / "copy.db"
                shutil.copyfile(candidate.path, path)
                shutil.copyfile(log, f"{path}-wal")
                uri = f"file:{quote(str(path))}"
            else:
                uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
            database = sqlite3.connect(uri, uri=True)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{candidate.name}: the database cannot be opened ({error})") from None
        with closing(database):
            work = iter(range(MOST_WORK))
            database.set_progress_handler(lambda: next(work, None) is None, 1000)
            database.execute("PRAGMA trusted_schema = OFF")
            yield database
