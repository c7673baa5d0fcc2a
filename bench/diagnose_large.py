"""How fast `heal diagnose` answers for a very large log, beside tools that count the lines with one word.

    python bench/diagnose_large.py [--megabytes 1000]

The whole command is started as a user does, on a log with a metric line in fifty and one error at its end. Clock and
processor seconds, MB/s and peak memory of the process, beside `grep -c` and `rg -c` on the same file, each read once
before so that all find it in the page cache. Fails where the answer is wrong, a goal is missed, or memory is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from log_reading import ENTRY, NOISE

GOAL_MB_S = 50
MOST_MB = 150
ERROR = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 88, in <module>\n'
    "    trainer.train()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.20 GiB is free. Of the allocated memory 70.10 GiB is allocated by PyTorch.\n"
)


@dataclasses.dataclass
class Ran:
    """A command, and what it took."""

    output: bytes
    clock_s: float
    processor_s: float
    peak_mb: float


def write(path: Path, size: int) -> None:
    """Write a log of one long run: 49 lines of other things, then the metrics of a step."""
    rng = random.Random(0)
    others = [
        "".join(NOISE[n % len(NOISE)].format(s=n % 60, n=n, r=n % 8) for n in range(49 * i, 49 * (i + 1)))
        for i in range(400)
    ]
    with path.open("w", encoding="utf-8") as file:
        written = step = 0
        while written < size:
            step += 1
            loss, norm = 1.5 + 2 / step**0.3 + 0.1 * rng.random(), 0.2 + rng.random()
            entry = ENTRY.format(x=loss, y=norm, n=4096 * step, e=step / 5e4)
            written += file.write(others[step % len(others)] + entry)
        file.write(ERROR)


def ran(*command: str) -> Ran:
    """Run a command; its memory is asked for while it runs, since what is counted at its end includes this process."""
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        peak_mb = 0.0
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            peak_mb = max(peak_mb, peak_so_far(process.pid))
            time.sleep(0.005)
        clock_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Ran(output.read(), clock_s, usage.ru_utime + usage.ru_stime, peak_mb)


def peak_so_far(pid: int) -> float:
    """Return the largest resident memory of a process until now, in MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has just ended
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the log is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "train.log")
        write(path, options.megabytes * 10**6)
        megabytes = path.stat().st_size / 1e6
        commands = {"heal diagnose": (sys.executable, "-m", "self_healing", "diagnose", "--json", str(path))}
        commands |= {
            f"{tool} -c Error": (tool, "-c", "Error", str(path)) for tool in ("grep", "rg") if shutil.which(tool)
        }
        if shutil.which("rg") is None:
            print("rg is not installed: left out")
        ran("cat", str(path))
        results = {name: ran(*command) for name, command in commands.items()}
    print(f"{'':16} {'clock s':>8} {'processor s':>12} {'MB/s':>7} {'peak MB':>8}   for {megabytes:.0f} MB")
    for name, each in results.items():
        print(
            f"{name:16} {each.clock_s:8.2f} {each.processor_s:12.2f} {megabytes / each.clock_s:7.0f} {each.peak_mb:8.0f}"
        )
    ours = results["heal diagnose"]
    found = json.loads(ours.output)["inputs"][0]["findings"]
    first = found[0] if found else {}
    lines = sum(int(each.output) for name, each in results.items() if name.startswith("grep"))
    print(f"named first: {first.get('class')} in line {first.get('line')}; grep counts {lines} lines with the word")
    if first.get("class") != "oom_gpu":
        raise SystemExit("the answer is wrong")
    if megabytes / ours.clock_s < GOAL_MB_S or ours.peak_mb > MOST_MB:
        raise SystemExit(f"the goals are {GOAL_MB_S} MB/s and {MOST_MB} MB")


if __name__ == "__main__":
    main()
