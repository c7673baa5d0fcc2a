"""Measure the shipped rules beside others': false alarms, detection delay, time and memory.

    python bench/detectors.py --quick       # a minute: 20,000 observations per kind of noise
    python bench/detectors.py               # the full table: 1,000,000 each, two processes

Drives `History` and the rule classes as the healer does: what a rule reports above `info` holds its metric's samples
back until it has been quiet for a while.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from curves import (
    AWKWARD,
    CURVES,
    EVENTS,
    LEVEL,
    NOISES,
    SIGMA,
    START,
    Array,
    awkward_losses,
    change,
    healthy_losses,
    noise,
    observations,
)
from rivals import Rival, all_rivals

from self_healing.core.care import NEW_NORMAL_AFTER, QUIET_AFTER
from self_healing.core.detector import Detector
from self_healing.core.failure import Severity
from self_healing.core.history import History
from self_healing.core.incident import Incident
from self_healing.core.signal import Metrics
from self_healing.detectors.dead_run import DeadRun
from self_healing.detectors.gradient_explosion import GradientExplosion
from self_healing.detectors.gradient_norm_growth import GradientNormGrowth
from self_healing.detectors.gradient_vanishing import GradientVanishing
from self_healing.detectors.loss_divergence import LossDivergence
from self_healing.detectors.loss_plateau import LossPlateau
from self_healing.detectors.loss_spike import LossSpike
from self_healing.detectors.memory_creep import MemoryCreep
from self_healing.detectors.throughput_drop import ThroughputDrop

RECORDED = ("loss", "grad_norm", "learning_rate", "reward")
LONGEST = 300
"""Observations after the onset within which an alarm counts as a detection."""


def all_rules() -> list[Detector]:
    """Return every rule that reads a series of numbers."""
    return [
        LossDivergence(), LossSpike(), LossPlateau(), GradientExplosion(), GradientNormGrowth(), GradientVanishing(),
        ThroughputDrop(), MemoryCreep(), DeadRun(),
    ]  # fmt: skip


class Watch:
    """History and rules together, with metrics held back as the healer would."""

    def __init__(self, rules: list[Detector] | None = None) -> None:
        self.rules = all_rules() if rules is None else rules
        self.history = History(need for rule in self.rules for need in rule.needs)
        self.held: dict[str, tuple[int, int]] = {}
        self.at = 0

    def see(self, values: dict[str, float], step: int | None = None) -> list[Incident]:
        """Feed one observation; return what the rules say."""
        now = Metrics(step=self.at if step is None else step, time_s=float(self.at), values=values)
        history = self.history
        history.see(now.step, now.time_s, values)
        found = [incident for rule in self.rules if (incident := rule.check(now, history)) is not None]
        self._hold(found)
        history.settle(self.held)
        self.at += 1
        return found

    def _hold(self, found: list[Incident]) -> None:
        for incident in found:
            if incident.metric is not None and incident.severity > Severity.INFO:
                opened, _ = self.held.get(incident.metric, (self.at, self.at))
                self.held[incident.metric] = (opened, self.at)
        for metric, (opened, fired) in tuple(self.held.items()):
            if self.at - fired >= QUIET_AFTER or self.at - opened >= NEW_NORMAL_AFTER:
                del self.held[metric]
                self.history.release(metric)


def count_false_alarms(task: tuple[str, str, int]) -> tuple[str, str, int, Counter[str]]:
    """Return how often each rule and rival speaks on healthy losses."""
    kind, shape, total = task
    rng = np.random.default_rng([NOISES.index(kind), len(shape), total])
    counts: Counter[str] = Counter()
    seen = 0
    for losses in healthy_losses(kind, shape, total, rng):
        watch, rivals = Watch(), all_rivals()
        before: set[str] = set()
        for values in observations(losses, rng):
            found = watch.see(values)
            names = {f"{i.severity} {i.name}" for i in found}
            counts.update(names - before)
            before = names
            for rival in rivals:
                counts[rival.name] += rival.see(values["loss"])
        seen += len(losses)
    return kind, shape, seen, counts


def first_alarms(watch: Watch, rivals: list[Rival], series: Array, rng: np.random.Generator) -> dict[str, int]:
    """Return for everyone the number of observations up to and including the first alarm."""
    first: dict[str, int] = {}
    for i, values in enumerate(observations(series, rng), start=1):
        for incident in watch.see(values):
            if incident.severity is Severity.ERROR:
                first.setdefault("ours", i)
            if incident.severity >= Severity.WARNING and incident.name != "loss-plateau":
                first.setdefault("ours, warning", i)
        for rival in rivals:
            if rival.see(values["loss"]):
                first.setdefault(rival.name, i)
        if "ours" in first and len(first) > len(rivals) + 1:
            break
    return first


def measure_delays(task: tuple[str, str, int, int]) -> tuple[str, str, int, dict[str, dict[str, list[float]]]]:
    """Return detection delays for every event; infinity where there was no alarm."""
    kind, shape, onset, repeats = task
    rng = np.random.default_rng([NOISES.index(kind), onset, len(shape)])
    delays: dict[str, dict[str, list[float]]] = {}
    events = EVENTS if shape == "flat" else ("collapse",)
    for _ in range(repeats):
        total = onset + LONGEST
        trend = np.full(total, LEVEL) if shape == "flat" else CURVES[shape](np.arange(total, dtype=float))
        start = START if shape == "flat" else float(trend[0])
        healthy = trend + SIGMA * noise(kind, total, rng)
        watch, rivals = Watch(), all_rivals()
        for values in observations(healthy[:onset], rng):
            watch.see(values)
            for rival in rivals:
                rival.see(values["loss"])
        for event in events:
            series = change(event, healthy[onset:], start, noise(kind, LONGEST, rng))
            first = first_alarms(copy.deepcopy(watch), copy.deepcopy(rivals), series, rng)
            for name in ("ours", "ours, warning", *(rival.name for rival in rivals)):
                delays.setdefault(event, {}).setdefault(name, []).append(first.get(name, math.inf))
    return kind, shape, onset, delays


def count_awkward(task: tuple[str, int]) -> tuple[str, int, Counter[str]]:
    """Return what the rules say of healthy runs with a complication, over all kinds of noise."""
    name, repeats = task
    counts: Counter[str] = Counter()
    for kind in NOISES:
        rng = np.random.default_rng([NOISES.index(kind), AWKWARD.index(name)])
        for _ in range(repeats):
            losses, rates = awkward_losses(kind, name, rng)
            watch = Watch()
            said: set[str] = set()
            for values, rate in zip(observations(losses, rng), rates.tolist(), strict=True):
                values["learning_rate"] = rate
                said.update(f"{i.severity} {i.name}" for i in watch.see(values))
            counts.update(said)
    return name, repeats * len(NOISES), counts


def watch_recorded_runs(cases: Path) -> Iterator[str]:
    """Yield what the rules say of recorded Hugging Face runs, where that folder is at hand."""
    index = cases / "states.jsonl"
    if not index.exists():
        yield f"{cases} is not there: no recorded runs"
        return
    for label in map(json.loads, index.read_text().splitlines()):
        try:
            log = json.loads((cases / label["file"]).read_text())["log_history"]
        except (ValueError, KeyError):
            continue
        watch, said, seen = Watch(), Counter[str](), 0
        for entry in log:
            values = {k: float(v) for k, v in entry.items() if k in RECORDED and isinstance(v, (int, float))}
            if "loss" in values:
                seen += 1
                said.update(f"{i.severity} {i.name}" for i in watch.see(values, entry["step"]))
        if seen >= 40:
            labels = "/".join(label["labels"]) + ("" if label["healthy"] else " (sick)")
            yield f"{label['id']} {labels:<45}{seen:>5} losses  {dict(said) or 'nothing'}"


def measure_memory(total: int) -> str:
    """Return what History and all rules occupy after few and after many observations of five metrics."""
    rng = np.random.default_rng(1)
    tracemalloc.start()
    watch, done, sizes = Watch(), 0, []
    for mark in (min(10_000, total), total):
        while done < mark:
            part = min(10_000, mark - done)
            for values in observations(LEVEL + SIGMA * noise("gauss", part, rng), rng):
                watch.see(values)
            done += part
        gc.collect()
        sizes.append(f"{tracemalloc.get_traced_memory()[0] / 1024:.0f} KiB after {mark:,} observations")
    tracemalloc.stop()
    return ", ".join(sizes)


def measure_time() -> str:
    """Return the time per observation of all rules together on five metrics."""
    rng = np.random.default_rng(2)
    watch = Watch()
    samples: list[float] = []
    for values in list(observations(LEVEL + SIGMA * noise("gauss", 20_000, rng), rng)):
        begun = time.perf_counter()
        watch.see(values)
        samples.append(time.perf_counter() - begun)
    median, high = statistics.median(samples) * 1e6, statistics.quantiles(samples, n=100)[98] * 1e6
    return f"{median:.0f} us per observation (median; 99 % below {high:.0f} us)"


def show_false_alarms(results: list[tuple[str, str, int, Counter[str]]]) -> None:
    """Print one line per kind of noise and shape."""
    rivals = [rival.name for rival in all_rivals()]
    print(
        "\nFalse alarms per 100,000 healthy observations (ours: incidents, counted when they begin; totals in brackets)"
    )
    print(
        f"{'noise':<11}{'shape':<9}{'seen':>10}{'ours: error':>13}{'warning':>12}" + "".join(f"{n:>13}" for n in rivals)
    )
    for kind, shape, seen, counts in results:
        per = 1e5 / seen
        errors = sum(n for name, n in counts.items() if name.startswith("error"))
        # A flat series is a plateau, and saying so is no false alarm.
        ignored = () if shape == "falling" else ("warning loss-plateau",)
        warnings = sum(n for name, n in counts.items() if name.startswith("warning") and name not in ignored)
        print(
            f"{kind:<11}{shape:<9}{seen:>10,}{errors * per:>8.1f} [{errors}]{warnings * per:>12.1f}"
            + "".join(f"{counts[n] * per:>13.1f}" for n in rivals)
        )
    total: Counter[str] = Counter()
    for *_, counts in results:
        total.update({k: v for k, v in counts.items() if k.split()[0] in ("info", "warning", "error")})
    print("ours, all together:", dict(total) or "nothing")


def show_delays(results: list[tuple[str, str, int, dict[str, dict[str, list[float]]]]]) -> None:
    """Print median delays and how many were found at all."""
    names = ("ours", "ours, warning", *(rival.name for rival in all_rivals()))
    print(f"\nMedian delay in observations (share found within {LONGEST} if not all; - if less than half)")
    print(f"{'noise':<11}{'shape':<10}{'onset':>6} {'event':<10}" + "".join(f"{n:>15}" for n in names))
    for kind, shape, onset, delays in results:
        for event, by_name in delays.items():
            cells = []
            for name in names:
                values = by_name[name]
                found = sum(v < math.inf for v in values) / len(values)
                median = statistics.median(values)
                cell = "-" if median == math.inf else f"{median:.0f}"
                cells.append(cell if found in (0.0, 1.0) else f"{cell} ({found:.0%})")
            print(f"{kind:<11}{shape:<10}{onset:>6} {event:<10}" + "".join(f"{c:>15}" for c in cells))


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="20,000 observations per kind of noise instead of a million"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cases", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "cases")
    options = parser.parse_args()
    quick = options.quick
    total, repeats = (20_000, 11) if quick else (1_000_000, 101)
    began = time.perf_counter()
    with Pool(options.processes) as pool:
        shapes = ("flat", "falling", "short")
        false = pool.map_async(count_false_alarms, [(k, s, total) for k in NOISES for s in shapes], chunksize=1)
        flat = [(kind, "flat", 1000, repeats) for kind in NOISES]
        falling = [(k, c, on, repeats // 3) for k in NOISES for c in list(CURVES)[:4] for on in (30, 60, 300)]
        delays = pool.map_async(measure_delays, flat + falling, chunksize=1)
        awkward = pool.map_async(count_awkward, [(name, 2 if quick else 20) for name in AWKWARD], chunksize=1)
        memory = pool.apply_async(measure_memory, (total,))
        show_false_alarms(false.get())
        show_delays(delays.get())
        print("\nHealthy runs with a complication: runs in which a rule spoke")
        for name, runs, counts in awkward.get():
            print(f"{name:<32}{runs:>5} runs  {dict(counts) or 'nothing'}")
        print("\nMemory:", memory.get())
    print("\nRecorded runs: incidents by observation")
    for line in watch_recorded_runs(options.cases):
        print(line)
    print("\nTime:", measure_time())
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
