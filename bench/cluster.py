"""The effective training time of large jobs: a failure model held against published figures, then with our measured recovery costs.

    python bench/cluster.py [--json] [--plot FILE.svg]

First the model has to give what others have published: mean times to failure within 3 %, effective times within 0.03; and failures that
are drawn have to agree with the formulas within four standard errors. Exit code 1 where one does not. Then the same model is given
what a recovery costs: stock, ours (`docs/measured.md`), and peers where they say. A few seconds, no GPU, the same figures for the same seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import cluster_figures as figures
from cluster_figures import HARDWARE_ONLY, LLAMA_3, RSC_1, SOFTWARE_PER_DAY, WITH_SOFTWARE, Assumed, Strategy
from cluster_model import (
    Drawn,
    Failure,
    Job,
    best_interval_s,
    drawn_effective_time,
    drawn_mttf_s,
    effective_time,
    effective_time_to_first_order,
    mttf_s,
)  # fmt: skip
from cluster_plot import picture

SIZES = (8, 32, 128, 512, 2048, 8192, 16_384)
PLOTTED = tuple(8 * 2**power for power in range(12))
MTTF_TOLERANCE = 0.03
TIME_TOLERANCE = 0.03
SEED = 12
FAILURES = 4000
"""Drawn for each figure: standard errors of about 1.6 % of what is lost."""


@dataclass(frozen=True)
class Check:
    """A published figure beside the model's."""

    what: str
    published: float
    source: str
    label: str
    model: float
    drawn: Drawn
    is_time: bool
    """An effective time, not a mean time to failure in hours."""
    note: str = ""
    at_least: bool = False
    """Only a lower bound is published."""
    is_exact: bool = True
    """The drawn failures are those of this formula; not of one that leaves terms out."""

    @property
    def is_within(self) -> bool:
        if self.at_least and self.model >= self.published:
            return True
        off = abs(self.model - self.published)
        return off <= TIME_TOLERANCE if self.is_time else off <= MTTF_TOLERANCE * self.published

    @property
    def is_drawn_alike(self) -> bool:
        return (
            self.drawn.agrees(self.model)
            if self.is_exact
            else abs(self.drawn.value - self.model) <= TIME_TOLERANCE + 4 * self.drawn.error
        )

    @property
    def holds(self) -> bool:
        return self.is_within and self.is_drawn_alike


def validation(seed: int = SEED, failures: int = FAILURES, rate: float = 1.0) -> list[Check]:
    """Return every check; a rate other than 1 multiplies all failures of the model, which breaks it."""
    rng = random.Random(seed)
    checks = []

    def mean(
        what: str,
        published: float,
        source: str,
        label: str,
        gpus: int,
        per_node: float,
        software: float = 0.0,
        note: str = "",
    ) -> None:
        drawn = drawn_mttf_s(gpus, rate * per_node, rng, failures, rate * software)
        model = mttf_s(gpus, rate * per_node, rate * software) / 3600
        checks.append(
            Check(
                what,
                published,
                source,
                label,
                model,
                Drawn(drawn.value / 3600, drawn.error / 3600),
                is_time=False,
                note=note,
            )
        )

    def time(
        what: str, published: float, source: str, label: str, job: Job, *, at_least: bool = False, note: str = ""
    ) -> None:
        job = job.slower_to_fail(1 / rate)
        drawn = drawn_effective_time(job, rng, failures)
        checks.append(
            Check(
                what, published, source, label, effective_time(job), drawn, is_time=True, note=note, at_least=at_least
            )
        )

    rsc, llama = "Meta RSC, 2410.21680", "Llama 3, 2407.21783"
    mean("MTTF, 16,384 GPUs, h", 1.8, rsc, "V", 16_384, RSC_1)
    mean("MTTF, 131,072 GPUs, h", 0.23, rsc, "V", 131_072, RSC_1, note="published with two digits")
    mean(
        "MTTF, 1,024 GPUs, h",
        7.9,
        rsc,
        "V",
        1024,
        RSC_1,
        SOFTWARE_PER_DAY,
        "the software rate is fitted to it; without one 28.8 h",
    )
    mean(
        "MTTF, 16,384 GPUs, h",
        54 * 24 / 419,
        llama,
        "V",
        16_384,
        LLAMA_3,
        note="419 in 54 days; the rate is fitted to it",
    )
    mean_s = mttf_s(16_384, LLAMA_3)
    job = Job(mean_s, 680.0, 20.0, (Failure(1.0, 420.0),))
    time(
        "effective time, 16,384 GPUs",
        0.90,
        llama,
        "V",
        job,
        at_least=True,
        note="20 s a save, 420 s down: chosen, not published; with 60 s a save 0.87",
    )
    for minutes, published in ((60, 0.70), (5, 0.93)):
        mean_s, interval = mttf_s(16_384, RSC_1), 60.0 * minutes
        job = Job(mean_s, interval, 0.0, (Failure(1.0, 300.0),))
        time(
            f"the same, a checkpoint every {minutes} min",
            published,
            rsc,
            "M",
            job,
            note="5 min down, saves for nothing",
        )
        first_order = effective_time_to_first_order(mean_s / rate, interval, 0.0, 300.0)
        drawn = checks[-1].drawn
        checks.append(
            Check(
                "by their own formula",
                published,
                rsc,
                "M",
                first_order,
                drawn,
                is_time=True,
                is_exact=False,
                note="to first order",
            )
        )
    mean_s = mttf_s(9600, LLAMA_3)
    job = Job(mean_s, best_interval_s(5.0, mean_s), 5.0, (Failure(1.0, 200.0),))
    time(
        "effective time, 9,600 GPUs",
        0.97,
        "ByteRobust, 2509.16293",
        "V",
        job,
        note="Llama 3's rate, 5 s a save, 200 s down: chosen",
    )
    mean_s = mttf_s(12_288, LLAMA_3)
    job = Job(mean_s, best_interval_s(5.0, mean_s), 5.0, (Failure(1.0, 300.0),))
    time(
        "effective time, 12,288 GPUs",
        0.90,
        "MegaScale, 2402.15627",
        "M",
        job,
        at_least=True,
        note="Llama 3's rate, 5 s a save, 300 s down: chosen",
    )
    return checks


@dataclass(frozen=True)
class Cell:
    """What one way to recover comes to at one size."""

    gpus: int
    strategy: str
    effective_time: float
    drawn: Drawn


def projection(
    strategies: Sequence[Strategy],
    sizes: Sequence[int],
    assumed: Assumed,
    software: float,
    rng: random.Random,
    failures: int,
) -> list[Cell]:
    """Return what each way to recover comes to at each size."""
    cells = []
    for gpus in sizes:
        for strategy in strategies:
            job = strategy.job(gpus, assumed, LLAMA_3, software)
            cells.append(Cell(gpus, strategy.name, effective_time(job), drawn_effective_time(job, rng, failures)))
    return cells


# -- tables --------------------------------------------------------------------------------------------------------------


def validation_table(checks: Sequence[Check]) -> str:
    rows = ["| check | published | source | label | formula | drawn | within tolerance | with |", "|---" * 8 + "|"]
    for each in checks:
        digits = 3 if each.is_time or each.published < 1 else 2
        published = f"{'>' if each.at_least else ''}{each.published:.{2 if each.is_time or digits == 2 else digits}f}"
        drawn = f"{each.drawn.value:.{digits}f} +- {each.drawn.error:.{digits + each.is_time}f}"
        verdict = "yes" if each.holds else "no" if not each.is_within else "no: formula and drawn disagree"
        cells = (
            each.what,
            published,
            each.source,
            f"[{each.label}]",
            f"{each.model:.{digits}f}",
            drawn,
            verdict,
            each.note,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def projection_table(cells: Sequence[Cell], software: float) -> str:
    names = list(dict.fromkeys(each.strategy for each in cells))
    rows = [f"| GPUs | mean time to failure | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for gpus in dict.fromkeys(each.gpus for each in cells):
        mean = mttf_s(gpus, LLAMA_3, software)
        values = " | ".join(f"{each.effective_time:.3f}" for each in cells if each.gpus == gpus)
        rows.append(
            f"| {gpus:,} | {f'{mean / 86_400:.0f} days' if mean > 3 * 86_400 else f'{mean / 3600:.1f} h'} | {values} |"
        )
    return "\n".join(rows)


def sensitivity_table(assumed: Assumed) -> str:
    """What the assumptions are worth: all failures, two sizes."""
    changes: dict[str, dict[str, float]] = {
        "as above": {}, "a person takes 10 minutes": {"person_s": 600.0}, "a person takes 8 hours": {"person_s": 28_800.0},
        "a step takes 30 s": {"step_s": 30.0}, "a step takes 0.5 s": {"step_s": 0.5}, "ranks come together at 50 a second": {"ranks_per_s": 50.0},
        "5 s a checkpoint": {"save_s": 5.0}, "120 s a checkpoint": {"save_s": 120.0},
    }  # fmt: skip
    sizes, strategies = (1024, 16_384), (figures.OURS_RESTARTED, figures.OURS_A_THIRD, figures.OURS_ALL)
    heads = " | ".join(f"{strategy.name}, {gpus:,}" for gpus in sizes for strategy in strategies)
    rows = [f"| | {heads} |", "|---" * (1 + len(sizes) * len(strategies)) + "|"]
    for what, values in changes.items():
        other = Assumed(**{each.name: values.get(each.name, getattr(assumed, each.name)) for each in fields(Assumed)})
        jobs = (strategy.job(gpus, other, LLAMA_3, SOFTWARE_PER_DAY) for gpus in sizes for strategy in strategies)
        rows.append(f"| {what} | {' | '.join(f'{effective_time(job):.3f}' for job in jobs)} |")
    return "\n".join(rows)


def swarms_table(assumed: Assumed, rng: random.Random, failures: int) -> str:
    """What it is worth that failures come one by one: drawn, all failures, the largest size."""
    strategies = (figures.SCHEDULER, figures.OURS_RESTARTED, figures.OURS_ALL)
    rows = [
        f"| gaps between failures | {' | '.join(each.name for each in strategies)} |",
        "|---" * (1 + len(strategies)) + "|",
    ]
    for name, shape in (("exponential", 1.0), ("Weibull, shape 0.7", 0.7)):
        drawn = (
            drawn_effective_time(each.job(16_384, assumed, LLAMA_3, SOFTWARE_PER_DAY), rng, failures, shape)
            for each in strategies
        )
        rows.append(f"| {name} | {' | '.join(f'{each.value:.3f} +- {each.error:.3f}' for each in drawn)} |")
    return "\n".join(rows)


def measured_table() -> str:
    rows = ["| measured | value | where |", "|---|---|---|"]
    rows += [
        f"| {what} | {value:g} | [{document}]({document.removeprefix('docs/')}) |"
        for _, value, what, document, _ in figures.sources()
    ]
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where the model does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="everything as one JSON object instead")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the last table but two as SVG")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--failures", type=int, default=FAILURES, help="drawn for each figure")
    parser.add_argument(
        "--rate",
        type=float,
        default=1.0,
        help="multiply the model's failures in the validation: anything but 1 must fail",
    )
    for each in fields(Assumed):
        parser.add_argument(
            f"--{each.name.replace('_', '-')}", type=float, default=each.default, help=each.metadata["help"]
        )
    given = parser.parse_args(words)
    assumed = Assumed(**{each.name: getattr(given, each.name) for each in fields(Assumed)})
    checks = validation(given.seed, given.failures, given.rate)
    rng = random.Random(given.seed)
    hardware = projection(HARDWARE_ONLY, SIZES, assumed, 0.0, rng, given.failures // 4)
    everything = projection(WITH_SOFTWARE, SIZES, assumed, SOFTWARE_PER_DAY, rng, given.failures // 4)
    apart = [each for each in (*hardware, *everything) if not each.drawn.agrees(each.effective_time)]
    holds = all(each.holds for each in checks) and not apart
    if given.plot is not None:
        lines = {
            each.name: [effective_time(each.job(gpus, assumed, LLAMA_3, SOFTWARE_PER_DAY)) for gpus in PLOTTED]
            for each in WITH_SOFTWARE
        }
        given.plot.write_text(picture(PLOTTED, lines))
    if given.json:
        print(json.dumps(as_json(checks, hardware, everything, holds=holds), indent=1))
        return 0 if holds else 1
    print(validation_table(checks))
    print(f"\nhardware failures only, at Llama 3's rate and mix\n\n{projection_table(hardware, 0.0)}")
    print(
        f"\nand {SOFTWARE_PER_DAY:.1f} software failures a day at every size\n\n{projection_table(everything, SOFTWARE_PER_DAY)}"
    )
    print(f"\n{sensitivity_table(assumed)}\n\n{swarms_table(assumed, rng, given.failures)}\n\n{measured_table()}")
    for each in apart:
        print(
            f"\n{each.strategy}, {each.gpus:,} GPUs: formula {each.effective_time:.4f}, drawn {each.drawn.value:.4f} +- {each.drawn.error:.4f}"
        )
    print(
        f"\nthe model {'holds' if holds else 'DOES NOT HOLD'}; {len(hardware) + len(everything)} figures were drawn as well, {len(apart)} disagree"
    )
    return 0 if holds else 1


def as_json(
    checks: Sequence[Check], hardware: Sequence[Cell], everything: Sequence[Cell], *, holds: bool
) -> dict[str, object]:
    def cells(of: Sequence[Cell]) -> list[dict[str, object]]:
        return [
            {"gpus": each.gpus, "strategy": each.strategy, "effective_time": each.effective_time, "drawn": each.drawn.value, "error": each.drawn.error}
            for each in of
        ]  # fmt: skip

    return {
        "v": 1,
        "holds": holds,
        "validation": [
            {
                "what": each.what, "published": each.published, "at_least": each.at_least, "source": each.source, "label": each.label,
                "model": each.model, "drawn": each.drawn.value, "error": each.drawn.error, "holds": each.holds, "note": each.note,
            }
            for each in checks
        ],
        "hardware": cells(hardware),
        "with_software": cells(everything),
        "measured": {name: value for name, value, *_ in figures.sources()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
