"""Records of data sets on the Hub, where `--samples` asks for them: the first ones, streamed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..check import CannotRun
from ..subject import Reference

LIMIT_S = 30.0
"""How long records are waited for; the libraries that fetch them try again and again."""
AT_ONCE = 8
_Key = tuple[str, str | None, str, str | None, int]
_lock = threading.Lock()
"""Checks run side by side and ask for the same records."""
_doors = threading.Semaphore(AT_ONCE)
_known: dict[_Key, Fetching] = {}


class Fetching(threading.Thread):
    """Records of one data set that are on their way, in a thread that nobody waits for longer than the limit."""

    def __init__(self, key: _Key) -> None:
        super().__init__(name="self-healing-records", daemon=True)
        self._key = key
        self._until = time.monotonic() + LIMIT_S
        self._found: list[Mapping[str, Any]] | CannotRun | None = None

    def run(self) -> None:
        """Fetch them."""
        with _doors:
            self._found = _streamed(*self._key)

    def rows(self) -> list[Mapping[str, Any]]:
        """Return the first records.

        Raises:
            CannotRun: they cannot be had, or do not come.

        """
        self.join(max(0.0, self._until - time.monotonic()))
        found = self._found
        if found is None:
            raise CannotRun(f"the records of {self._key[0]} did not come within {LIMIT_S:g} s")
        if isinstance(found, CannotRun):
            raise CannotRun(str(found))
        return found


def fetching(reference: Reference, most: int) -> Fetching:
    """Begin to fetch the first records of a data set; each is fetched once."""
    key = (reference.name, reference.config, reference.split or "train", reference.revision, most)
    with _lock:
        if key not in _known:
            _known[key] = Fetching(key)
            _known[key].start()
        return _known[key]


def _streamed(
    name: str, config: str | None, split: str, revision: str | None, most: int
) -> list[Mapping[str, Any]] | CannotRun:
    try:
        from datasets import load_dataset  # noqa: PLC0415  # it takes a second, and is only needed where one asks for it

        data = load_dataset(name, config, split=split.partition("[")[0], revision=revision, streaming=True)
        return list(itertools.islice(data, most))
    except Exception as error:  # noqa: BLE001  # whatever it is, the check says so
        reason = " ".join(str(error).split())[:200]
        return CannotRun(f"the records of {name} could not be fetched, {type(error).__name__}: {reason}")
