"""The device of this machine, without torch: asked of the driver's own program, with a time limit."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..surroundings.driver import nvidia_smi
from .devices import Device, device_of_driver

_QUERY = "--query-gpu=name,memory.total,compute_cap,driver_version"
_ROW = re.compile(r"\s*([^,]{1,200}?)\s*,\s*(\d{3,8})(?: MiB)?\s*,\s*(\d{1,2})\.(\d)\s*,\s*([\d.]{1,20})\s*")
_KEPT = 0.985
"""The part of the board's memory that programs see; the rest is the driver's own."""


@dataclass(frozen=True, slots=True)
class Present:
    """What this machine has."""

    device: Device
    count: int
    driver: str


def present_gpu(environ: Mapping[str, str]) -> Present | None:
    """Return the GPUs of this machine that are visible; None where there is none, or the driver does not answer."""
    found = _asked(environ.get("PATH"))
    if found is None:
        return None
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    count = 0 if visible.strip() in ("", "-1") else len(visible.split(","))
    return Present(found.device, min(count, found.count), found.driver) if count else None


def host_memory_gib() -> float:
    """Return what this machine's own memory holds, or what the container that it is in may have of it."""
    from ...snapshots.budget import whole_memory  # noqa: PLC0415  # only a check for the CPU asks

    return whole_memory() / 2**30


@functools.cache
def _asked(path: str | None) -> Present | None:
    """Ask once in a process: a dozen checks want to know."""
    said = nvidia_smi(_QUERY, "--format=csv,noheader,nounits", path=path)
    rows = [row for line in said.splitlines() if (row := _ROW.fullmatch(line)) is not None]
    if not rows:
        return None
    smallest = min(rows, key=lambda row: int(row[2]))  # a run is as small as its smallest device
    memory_gib = int(smallest[2]) / 1024 * _KEPT
    device = device_of_driver(smallest[1], memory_gib, (int(smallest[3]), int(smallest[4])))
    return Present(device, len(rows), smallest[5])
