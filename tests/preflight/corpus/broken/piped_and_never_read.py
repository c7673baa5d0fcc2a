"""Start training for each seed, one after another."""

import subprocess
import sys

SEEDS = [0, 1, 2]

print("seeds", SEEDS)
for seed in SEEDS:
    process = subprocess.Popen(
        [sys.executable, "captured_and_dropped.py", f"out/seed-{seed}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    code = process.wait()
    print("seed", seed, "ended with", code)
    if code != 0:
        sys.exit(code)
