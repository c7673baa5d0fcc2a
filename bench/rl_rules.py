"""Measure the rules for RL and preference runs: false alarms on made-up healthy runs, detection delay, and cost.

    python bench/rl_rules.py --quick      # about a minute
    python bench/rl_rules.py              # the table of docs/measured.md, about ten minutes, two processes

The runs are made up (`rl_curves.py`): rewards, entropies, margins and so on of every family under five kinds of noise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from curves import NOISES
from detectors import Watch, all_rules
from rl_curves import FAMILIES, FROM_THE_START, SICK, Columns

from self_healing.config.rules import discovered
from self_healing.core.detector import Detector
from self_healing.core.failure import Severity

ONSET, LONGEST = 300, 200
SHAPES = {"short": 300, "usual": 2000, "long": 20_000}
PACES = (40.0, 120.0)
"""Steps in which a run makes two thirds of its gain."""


def rl_rules() -> list[Detector]:
    """Return the rules this is about."""
    return [rule() for name, rule in discovered().items() if name in SICK]


def rows(run: Columns) -> Iterator[dict[str, float]]:
    """Yield the observations of a run; what is NaN was not logged."""
    names = list(run)
    for values in zip(*(run[name].tolist() for name in names), strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}


def count_false_alarms(task: tuple[str, str, str, int]) -> tuple[str, str, int, Counter[str]]:
    """Return how many incidents each rule begins on healthy runs of one family, noise and length."""
    family, kind, shape, total = task
    rng = np.random.default_rng([list(FAMILIES).index(family), NOISES.index(kind), SHAPES[shape]])
    counts: Counter[str] = Counter()
    seen, length = 0, SHAPES[shape]
    while seen < total:
        watch = Watch(rl_rules())
        before: set[str] = set()
        for values in rows(FAMILIES[family](length, kind, rng, PACES[seen // length % len(PACES)])):
            names = {f"{i.severity} {i.name}" for i in watch.see(values)}
            counts.update(names - before)
            before = names
        seen += length
    return family, kind, seen, counts


def measure_delay(task: tuple[str, str, int]) -> tuple[str, str, list[float], list[float]]:
    """Return the observations from the onset to the first warning and to the first error of a rule."""
    name, kind, repeats = task
    family, change = SICK[name]
    rng = np.random.default_rng([list(SICK).index(name), NOISES.index(kind)])
    onset = 0 if name in FROM_THE_START else ONSET
    warned: list[float] = []
    failed: list[float] = []
    for _ in range(repeats):
        run = FAMILIES[family](onset + (2 * ONSET if not onset else LONGEST), kind, rng, PACES[0])
        change(run, onset, rng)
        watch = Watch(rl_rules())
        warning, error = math.inf, math.inf
        for at, values in enumerate(rows(run)):
            for incident in watch.see(values):
                if incident.name == name and at >= onset and incident.severity >= Severity.WARNING:
                    warning = min(warning, at - onset + 1)
                    if incident.severity is Severity.ERROR:
                        error = min(error, at - onset + 1)
        warned.append(warning)
        failed.append(error)
    return name, kind, warned, failed


def measure_cost() -> str:
    """Return the time per observation of these rules on an observation that has none, and all, of their metrics."""
    told = []
    rng = np.random.default_rng(5)
    plain = [
        {"loss": x, "grad_norm": 1.0, "learning_rate": 1e-4} for x in (2 + 0.1 * rng.standard_normal(20_000)).tolist()
    ]
    full = list(rows(FAMILIES["GRPO"](20_000, "gauss", rng, 400.0)))
    for words, observed in (("without these metrics", plain), ("a GRPO run", full)):
        medians = []
        for rules in (all_rules(), [*all_rules(), *rl_rules()]):
            watch, samples = Watch(rules), []
            for values in observed:
                begun = time.perf_counter()
                watch.see(values)
                samples.append(time.perf_counter() - begun)
            medians.append(statistics.median(samples) * 1e6)
        told.append(f"{words}: {medians[1]:.0f} us per observation with them, {medians[0]:.0f} us without")
    return "; ".join(told)


def show_false_alarms(results: list[tuple[str, str, int, Counter[str]]]) -> None:
    """Print one line per family, and the totals by rule."""
    print("False alarms per 100,000 healthy observations, over five kinds of noise (counted when they begin)")
    total, seen_in_all = Counter[str](), 0
    for family in FAMILIES:
        mine = [(seen, counts) for each, _, seen, counts in results if each == family]
        seen, counts = sum(seen for seen, _ in mine), sum((counts for _, counts in mine), Counter[str]())
        told = {name: f"{number * 1e5 / seen:.1f} [{number}]" for name, number in sorted(counts.items())}
        print(f"{family:<14}{seen:>12,}  {told or 'nothing'}")
        total += counts
        seen_in_all += seen
    errors = sum(number for name, number in total.items() if name.startswith("error"))
    print(f"{'all':<14}{seen_in_all:>12,}  errors: {errors}")


def show_delays(results: list[tuple[str, str, list[float], list[float]]]) -> None:
    """Print the delays of every rule, over all kinds of noise."""
    print(f"\n{'rule':<32}{'family':<14}{'warning after':>14}{'found':>8}{'error after':>13}{'found':>8}")
    for name, (family, _) in SICK.items():
        cells = ""
        for which, width in ((2, 14), (3, 13)):
            values = [value for result in results if result[0] == name for value in result[which]]  # type: ignore[attr-defined]
            found = sum(value < math.inf for value in values) / len(values)
            middle = statistics.median(values)
            cells += f"{'-' if middle == math.inf else f'{middle:.0f}':>{width}}{found:>8.0%}"
        print(f"{name:<32}{family:<14}{cells}")


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fraction of the observations")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    total, repeats = (3000, 2) if options.quick else (40_000, 10)
    began = time.perf_counter()
    with Pool(options.processes) as pool:
        healthy = [(f, k, s, max(total, SHAPES[s])) for f in FAMILIES for k in NOISES for s in SHAPES]
        false = pool.map_async(count_false_alarms, healthy, chunksize=1)
        delays = pool.map_async(measure_delay, [(name, k, repeats) for name in SICK for k in NOISES], chunksize=1)
        show_false_alarms(false.get())
        show_delays(delays.get())
    print("\nCost:", measure_cost())
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
