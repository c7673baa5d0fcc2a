"""How fast output passes through `heal run`, beside `cat` and `script`: a command writes as fast as it can for 5 s.

    python bench/supervised_output.py [--seconds 5]

The command counts what it could write. MB/s, the peak memory of what stands between, and whether every byte arrived. Lines of
metrics are read on their way, so that this is also how fast a log can be watched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

FLOOD = """
import os, sys, time
block = b"".join(b"%s line %d of a log that says nothing\\n" % (b"x" * 60, n) for n in range(999)) + b"{'loss': 2.5, 'grad_norm': 0.25, 'epoch': 0.1}\\n"
until, total = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < until:
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
    total += len(block)
open(sys.argv[2], "w").write(str(total))
"""


def peak_of(pid: int, peaks: list[float], is_over: threading.Event) -> None:
    """Note the largest resident memory of the process between, in MB, without what it has started."""
    while not is_over.wait(0.02):
        try:
            peaks.append(psutil.Process(pid).memory_info().rss / 1e6)
        except psutil.Error:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        script, count = Path(folder, "flood.py"), Path(folder, "count")
        script.write_text(FLOOD, encoding="utf-8")
        flood = [sys.executable, str(script), str(seconds), str(count)]
        ways = {
            "cat": ["sh", "-c", f"{' '.join(flood)} | cat"],
            "script": ["script", "-q", "-c", " ".join(flood), "/dev/null"],
            "heal run": [
                sys.executable,
                "-m",
                "self_healing",
                "run",
                "--run-dir",
                str(Path(folder, "run")),
                "--",
                *flood,
            ],
        }
        print(f"{'':10} {'MB/s':>8} {'peak MB':>8}   every byte arrived")
        for name, command in ways.items():
            if shutil.which(command[0]) is None:
                print(f"{name:10} is not installed: left out")
                continue
            count.unlink(missing_ok=True)
            began = time.perf_counter()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
            )
            peaks, is_over = [0.0], threading.Event()
            watching = threading.Thread(target=peak_of, args=(process.pid, peaks, is_over))
            watching.start()
            arrived = 0
            while data := os.read(process.stdout.fileno(), 1 << 20):
                arrived += len(data)
            process.wait()
            took = time.perf_counter() - began
            is_over.set()
            watching.join()
            wrote = int(count.read_text(encoding="ascii"))
            lines = arrived - wrote if name == "script" else 0  # its terminal turns line feeds into two bytes
            is_whole = arrived == wrote or (name == "script" and lines > 0)
            print(
                f"{name:10} {wrote / 1e6 / took:8.0f} {max(peaks):8.0f}   {'yes' if is_whole else f'NO: {arrived} of {wrote}'}"
            )


if __name__ == "__main__":
    main()
