"""What `bench/snapshot.py` has measured of one model and one way, and whether it is within its limits. Needs no torch."""

from __future__ import annotations

import dataclasses

GB = 1e9
WANTED_GB_S = 0.8 * 54
"""Four fifths of what pinned copies reach on an H200."""
STALL_SHARE = 0.05
"""How much of the copy's time training may wait."""
TIME_SHARE = 0.01
"""How much of a run's time states may take at the default interval."""
RESTORE_S = 0.5
"""How long it may take to check a state of 1B and to put it back."""

HOLDS = "holds"
CANNOT_TELL = "cannot be told from its limit: turns scatter more"
DOES_NOT_HOLD = "DOES NOT HOLD"


@dataclasses.dataclass(frozen=True)
class Restored:
    """A state that was put back."""

    verify_s: float
    copy_s: float
    different: tuple[str, ...]
    """Tensors that are not what they were, by name."""
    load_s: float | None = None
    """What `torch.load` took for the same state."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One model, one way."""

    model: str
    way: str
    nbytes: int
    added_bytes: int
    copy_s: float
    passes_s: float
    """Forward and backward pass, behind which a direct copy may hide."""
    stall_s: float
    scatter_s: float
    time_share: float
    restored: Restored | None = None

    @property
    def stall_limit_s(self) -> float:
        """How long training may wait for one snapshot."""
        unhidden_s = max(0.0, self.copy_s - self.passes_s) if self.way == "direct" else 0.0
        return STALL_SHARE * self.copy_s + unhidden_s

    @property
    def bandwidth(self) -> float:
        """In GB/s."""
        return self.nbytes / self.copy_s / GB


@dataclasses.dataclass(frozen=True)
class Judged:
    """One figure beside its limit."""

    what: str
    measured: str
    limit: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.what} {self.measured}, limit {self.limit}: {self.verdict}"


def judged(row: Row) -> list[Judged]:
    """Return every figure of a row that has a limit."""
    found = [
        _judged("copy, GB/s", row.bandwidth, WANTED_GB_S, is_within=row.bandwidth >= WANTED_GB_S),
        Judged(
            "stall, ms",
            f"{1e3 * row.stall_s:+.2f} +- {1e3 * row.scatter_s:.2f}",
            f"{1e3 * row.stall_limit_s:.2f}",
            _of_stall(row),
        ),
        _judged("of the time, %", 100 * row.time_share, 100 * TIME_SHARE, is_within=row.time_share <= TIME_SHARE),
    ]
    if (restored := row.restored) is not None:
        took_s = restored.verify_s + restored.copy_s
        found.append(_judged("put back, s", took_s, RESTORE_S, is_within=took_s <= RESTORE_S))
        named = ", ".join(restored.different[:4]) or "all as before"
        found.append(Judged("put back, tensors", named, "all", DOES_NOT_HOLD if restored.different else HOLDS))
        if restored.load_s is not None:
            is_faster = took_s < restored.load_s
            found.append(_judged("put back, beside torch.load, s", took_s, restored.load_s, is_within=is_faster))
    return found


def missed(rows: list[Row]) -> list[str]:
    """Say of each figure that was not shown to be within its limit what it is."""
    return [f"{row.model} {row.way}: {each}" for row in rows for each in judged(row) if each.verdict != HOLDS]


def _judged(what: str, measured: float, limit: float, *, is_within: bool) -> Judged:
    # A figure that is no number is compared as false, and so holds nothing.
    return Judged(what, f"{measured:.3g}", f"{limit:.3g}", HOLDS if is_within else DOES_NOT_HOLD)


def _of_stall(row: Row) -> str:
    if row.stall_s <= row.stall_limit_s:
        return HOLDS
    return CANNOT_TELL if row.stall_s - 2 * row.scatter_s <= row.stall_limit_s else DOES_NOT_HOLD


def table(rows: list[Row]) -> str:
    """Return the rows as they stand in docs/measured.md."""
    lines = ["| state | GB | way | added on the device | copy | stall | limit | of the time |", "|---" * 8 + "|"]
    lines += [
        f"| {row.model} | {row.nbytes / GB:.2f} | {row.way} | {row.added_bytes / GB:.2f} GB | {1e3 * row.copy_s:.1f} ms, "
        f"{row.bandwidth:.1f} GB/s | {1e3 * row.stall_s:+.2f} +- {1e3 * row.scatter_s:.2f} ms | {1e3 * row.stall_limit_s:.2f} ms | "
        f"{100 * row.time_share:.3f} % |"
        for row in rows
    ]
    return "\n".join(lines)
