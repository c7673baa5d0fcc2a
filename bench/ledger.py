"""What recording costs the training thread: append to the ledger against writing, and writing and syncing, in line."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from self_healing.core.ledger import Ledger

LINES = 20_000
VALUES = {"loss": 2.345678, "grad_norm": 1.234567, "learning_rate": 2e-5, "step_time_s": 0.123456}


def microseconds(do, lines: int = LINES) -> tuple[float, float]:
    """Return median and 99th percentile of one call."""
    taken = []
    for step in range(lines):
        started = time.perf_counter_ns()
        do(step)
        taken.append(time.perf_counter_ns() - started)
    taken.sort()
    return statistics.median(taken) / 1e3, taken[int(0.99 * len(taken))] / 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, environ=os.environ)

        def append(step: int) -> None:
            body = {"time_s": float(step), "values": dict(VALUES)}
            ledger.append("signal", "metrics", step=step, time_s=float(step), body=body)

        rows = [("ledger.append", *microseconds(append))]
        ledger.close()
        plain = os.open(Path(folder) / "plain.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        def write(step: int) -> None:
            os.write(plain, json.dumps({"step": step, "values": VALUES}).encode() + b"\n")

        rows.append(("json.dumps + os.write", *microseconds(write)))

        def synced(step: int) -> None:
            write(step)
            os.fsync(plain)

        rows.append(("the same + fsync", *microseconds(synced, 300)))
        os.close(plain)
    print(f"{'microseconds on the training thread':40s} {'median':>8s} {'p99':>8s}")
    for name, median, p99 in rows:
        print(f"{name:40s} {median:8.1f} {p99:8.1f}")


if __name__ == "__main__":
    main()
