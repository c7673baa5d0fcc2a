"""Records of data sets on the Hub, where `--samples` asks for them: the first ones, streamed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

from ..check import CannotRun
from ..subject import Reference

_lock = threading.Lock()
"""Checks run side by side and ask for the same records."""
_known: dict[tuple[str, str | None, str, str | None, int], list[Mapping[str, Any]] | CannotRun] = {}


def fetched_rows(reference: Reference, most: int) -> list[Mapping[str, Any]]:
    """Return the first records of a data set; each is fetched once.

    Raises:
        CannotRun: they cannot be had.

    """
    key = (reference.name, reference.config, reference.split or "train", reference.revision, most)
    with _lock:
        if key not in _known:
            _known[key] = _streamed(*key)
        found = _known[key]
    if isinstance(found, CannotRun):
        raise CannotRun(str(found))
    return found


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
