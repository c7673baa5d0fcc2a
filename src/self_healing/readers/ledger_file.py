"""Read our own ledger: its entries one by one, and what is known to be missing from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..core.errors import InputError, LedgerError
from ..core.ledger import Entry, LedgerReading, iter_ledger
from ..core.run_ledgers import iter_run


def read_entries(path: Path, reading: LedgerReading, supervisor: Path | None = None) -> Iterator[Entry]:
    """Yield the entries of a ledger in constant memory; `reading` learns what is torn, thinned or lost.

    Those of a supervisor's ledger are merged with them, where one is named and there.

    Raises:
        InputError: the file is no ledger, or was written by a newer version.

    """
    try:
        yield from iter_ledger(path, reading) if supervisor is None else iter_run(path, supervisor, reading)
    except LedgerError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read to its end ({error.strerror})") from error
