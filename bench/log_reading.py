"""How fast a log is read: lines alone, lines with their metrics, and lines with what they give away, for five kinds of log.

    python bench/log_reading.py [--megabytes 200]

Prints MB/s (of processor time) of each stage, beside `grep -c` for one word and for twelve, and the peak memory. The text is
read with all rows of the catalogue. The kinds: a log without metrics; one with a metric
line in fifty, as training writes; one of progress bars that redraw themselves; one full of colours; and one in which
every line holds metrics, the worst case.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from self_healing.core.discover import discover_patterns
from self_healing.diagnosis import TextReading
from self_healing.readers.log_runs import read_metrics
from self_healing.readers.log_text import open_log, read_blocks

NOISE = (
    "2026-01-05 10:00:{s:02d},123 - trainer.data - INFO - Loaded shard {n} of 4096 from /data/tokens/part-{n:05d}.bin in 1.2 s\n",
    '[rank{r}]:   File "/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line {n}, in _call_impl\n',
    "(Worker pid={n}) INFO {n} [scheduler.py:{s}] waiting: 12, running: 64, cache usage: 81.2%\n",
    "/opt/lib/python3.11/site-packages/torch/utils/checkpoint.py:{n}: UserWarning: the parameter should be passed explicitly\n",
)
ENTRY = "{{'loss': {x:.4f}, 'grad_norm': {y:.6f}, 'learning_rate': 1.8e-05, 'num_tokens': {n}.0, 'epoch': {e:.2f}}}\n"
BAR = "\r {p:3d}%|\u2588\u2588\u2588\u2588\u258a     | {n}/100000 [12:56<24:01:58,  1.62s/it]"


def lines_of(kind, rng):
    n = 0
    while True:
        n += 1
        x, y = 2.0 + rng.random(), 0.2 + rng.random()
        entry = ENTRY.format(x=x, y=y, n=n, e=n / 5e5)
        noise = NOISE[n % len(NOISE)].format(s=n % 60, n=n, r=n % 8)
        match kind:
            case "no metrics":
                yield noise
            case "one in fifty":
                yield entry if n % 50 == 0 else noise
            case "bars":
                yield BAR.format(p=n // 1000 % 101, n=n) + ("\r" + entry if n % 50 == 0 else "")
            case "colours":
                yield f"\x1b[36m(Worker pid={n})\x1b[0m " + (entry if n % 50 == 0 else noise)
            case "every line":
                yield entry


def write(path, kind, size):
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        written = 0
        piece = []
        for line in lines_of(kind, rng):
            piece.append(line)
            if len(piece) == 20_000:
                text = "".join(piece)
                # The same piece again and again: making lines takes longer than reading them.
                while written < size:
                    written += file.write(text)
                return


WORDS = "error|exception|traceback|killed|nan|out of memory|timeout|failed|refused|denied|corrupt|signal"


def grepped(path, *arguments):
    """Return the processor time that grep takes for the file."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["grep", *arguments, str(path)], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return max(1e-3, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--megabytes", type=int, default=200)
    size = arguments.parse_args().megabytes * 10**6
    patterns = discover_patterns("self_healing.patterns")
    print(
        f"{'kind':14} {'lines MB/s':>11} {'with metrics':>13} {'with text':>10} {'grep -c':>8} {'grep -ciE':>10} {'observations':>13} {'findings':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.txt")
        for kind in ("no metrics", "one in fifty", "bars", "colours", "every line"):
            write(path, kind, size)
            megabytes = path.stat().st_size / 1e6
            times = [time.process_time()]
            with open_log(path) as file:
                for _ in read_blocks(file):
                    pass
            times.append(time.process_time())
            with open_log(path) as file:
                count = sum(1 for _ in read_metrics(read_blocks(file)))
            times.append(time.process_time())
            reading = TextReading(patterns)
            with open_log(path) as file:
                for block in read_blocks(file):
                    reading.feed(block)
            findings = reading.findings()
            times.append(time.process_time())
            lines, metrics, text = (megabytes / (b - a) for a, b in itertools.pairwise(times))
            one, several = (megabytes / grepped(path, *arguments) for arguments in (("-c", "Error"), ("-ciE", WORDS)))
            print(
                f"{kind:14} {lines:11.0f} {metrics:13.0f} {text:10.0f} {one:8.0f} {several:10.0f} {count:13} {len(findings):9}",
                flush=True,
            )
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
