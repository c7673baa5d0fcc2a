"""Runs that are dead from their first steps: none of the healthy ones may be called so, those at 100 times the rate must.

    python bench/dead_runs.py        # about a minute

Healthy are the recorded runs of `--cases`, each taken from every one of its steps as if that were the first and with
every usual size of vocabulary; losses made up of noise and curves; and small models trained for real. The same models
are then trained at 10 and at 100 times the rate.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import healthy_runs
from audit import Recipe, Training, batches, begin, make_optimizers
from curves import LEVEL, NOISES, healthy_losses

from self_healing.core.failure import Severity
from self_healing.core.history import History
from self_healing.core.incident import Incident
from self_healing.core.signal import Metrics
from self_healing.detectors.dead_run import DeadRun
from self_healing.drills.tiny_training import VOCABULARY

VOCABULARIES = (None, 32_000, 50_257, 151_936, 256_000)
RATES = {"AdamW": 1e-2, "SGD": 0.3, "Lion": 5e-3, "Adafactor": 1e-2}
"""Rates near the best of forty steps, for both models."""
STEPS = 48


def first_said(losses: Sequence[float], vocabulary: int | None, steps: Iterable[int] | None = None) -> Incident | None:
    """Return what the rule says first of a run, or None."""
    rule = DeadRun()
    history = History(rule.needs)
    if vocabulary is not None:
        history.learn({"vocab_size": vocabulary})
    found: Incident | None = None
    for step, loss in zip(steps or range(1, len(losses) + 1), losses[: rule.window + 1], strict=False):
        now = Metrics(step=step, time_s=float(step), values={"loss": loss})
        history.see(step, float(step), now.values)
        incident = rule.check(now, history)
        if incident is not None and (found is None or incident.severity > found.severity):
            found = incident
        history.settle()
    return found


class Tally:
    """How many runs were looked at, and what was said."""

    def __init__(self) -> None:
        self.runs = self.seen = 0
        self.said: Counter[str] = Counter()

    def add(self, losses: Sequence[float], vocabulary: int | None) -> None:
        """Let the rule look at a run."""
        found = first_said(losses, vocabulary)
        self.runs += 1
        self.seen += min(len(losses), DeadRun().window)
        if found is not None:
            self.said[str(found.severity)] += 1

    def show(self, title: str) -> None:
        """Print one line."""
        errors, warnings = self.said["error"], self.said["warning"]
        print(f"{title:<58}{self.runs:>8,}{self.seen:>11,}{errors:>8}{warnings:>10}")


def recorded(cases: Path) -> Iterator[tuple[str, bool, list[float]]]:
    """Yield name, health and losses of recorded runs; those with rewards are not judged."""
    index = cases / "states.jsonl"
    for label in map(json.loads, index.read_text().splitlines() if index.exists() else ()):
        try:
            log = json.loads((cases / label["file"]).read_text())["log_history"]
        except (ValueError, KeyError):
            continue
        losses = [float(entry["loss"]) for entry in log if "loss" in entry]
        if losses and not any("reward" in entry for entry in log):
            yield label["id"], label["healthy"], [x for x in losses if math.isfinite(x)]


def watch_recorded(cases: Path) -> None:
    """Show what is said of recorded runs, from their first step and from every other."""
    whole, anywhere = Tally(), Tally()
    sick = []
    for name, is_healthy, losses in recorded(cases):
        for vocabulary in VOCABULARIES:
            if is_healthy:
                whole.add(losses, vocabulary)
                for start in range(len(losses) - 8):
                    anywhere.add(losses[start : start + 33], vocabulary)
            elif (found := first_said(losses, vocabulary)) is not None:
                sick.append(f"  {name}, vocabulary {vocabulary}: {found.severity} at observation {found.step}")
    whole.show(f"recorded, {len(VOCABULARIES)} sizes of vocabulary each")
    anywhere.show("the same, from every one of their steps")
    print("recorded and sick, for comparison:", *sick or ["nothing said"], sep="\n")


def watch_made_up() -> None:
    """Show what is said of noise on flat and falling losses that begin at the level of guessing."""
    tally = Tally()
    for number, kind in enumerate(NOISES):
        for shape, vocabulary, raised in (("short", 64, math.log(64) - LEVEL), ("falling", 36_000, 0.0)):
            length = 400 if shape == "short" else 2000
            for losses in healthy_losses(kind, shape, 1000 * length, np.random.default_rng(number)):
                tally.add((losses[:33] + raised).tolist(), vocabulary)
    tally.show("noise on flat and falling losses, from guessing on")


def watch_small_healthy() -> None:
    """Show what is said of the trainings of `healthy_runs.py`, each with its few classes as the vocabulary."""
    tally = Tally()
    for number in range(60):
        r = healthy_runs.recipe(number)
        classes = healthy_runs.CLASSES if r.model in ("softmax", "perceptron") else healthy_runs.LETTERS
        steps = healthy_runs.train(replace(r, steps=33) if r.schedule == "constant" else r)
        tally.add([values["loss"] for values, _ in zip(steps, range(33), strict=False)], classes)
    tally.show("60 tiny trainings (healthy_runs.py)")


def language_models() -> Iterator[tuple[str, Recipe, bool, int]]:
    """Yield name, recipe, whether the model is trained before, and size of batch of twenty trainings."""
    for model in ("llama", "post-norm"):
        for optimizer, rate in RATES.items():
            warm = Recipe(model, optimizer, rate, seed=7)
            yield f"{model}, {optimizer}", replace(warm, schedule="constant"), False, 8
            yield f"{model}, {optimizer}, trained before, batch 2", replace(warm, schedule="constant"), True, 2
    for optimizer in ("AdamW", "SGD"):
        yield f"llama, {optimizer}, warm-up", Recipe("llama", optimizer, RATES[optimizer]), False, 8
        yield (
            f"llama, {optimizer}, batch 1",
            Recipe("llama", optimizer, RATES[optimizer], schedule="constant"),
            False,
            1,
        )


def trained(recipe: Recipe, times: float, size: int, before: Training | None) -> list[float]:
    """Return the losses of a training at a multiple of its rate."""
    hot = replace(recipe, rate=times * recipe.rate)
    training = begin(hot)
    if before is not None:
        training.model.load_state_dict(before.model.state_dict())
        training.optimizers = make_optimizers(hot, training.model)
    training.batches = (ids[:size] for ids in batches(recipe.seed + 1))
    while len(training.losses) < STEPS and (not training.losses or math.isfinite(training.losses[-1])):
        training.step()
    return [x for x in training.losses if math.isfinite(x)]


def watch_language_models() -> None:
    """Show what is said of language models at a rate that works, at ten and at a hundred times that."""
    tallies = {times: Tally() for times in (1, 10, 100)}
    lines, delays, dead = [], [], 0
    for name, recipe, is_trained_before, size in language_models():
        before = begin(replace(recipe, schedule="constant")) if is_trained_before else None
        for _ in range(200 if before is not None else 0):
            before.step()  # type: ignore[union-attr]
        cells = []
        for times, tally in tallies.items():
            losses = trained(recipe, times, size, before)
            tally.add(losses, VOCABULARY)
            found = first_said(losses, VOCABULARY)
            ends = f"{losses[0]:.2f} -> {statistics.median(losses[-8:]):.3g}"
            cells.append(f"{ends}{f', seen at {found.step}' if found is not None else ''}")
            if times == 100:
                is_lost = len(losses) < STEPS or statistics.median(losses[-8:]) > max(losses[0], math.log(VOCABULARY))
                dead += is_lost
                delays += [found.step] if found is not None and found.severity is Severity.ERROR else []
        lines.append(f"  {name:<44}" + "".join(f"{cell:>30}" for cell in cells))
    for times, tally in tallies.items():
        tally.show(f"language models of 64 words, {times} x the rate")
    print(f"\n  {'first loss -> median of the last eight of 48':<44}" + "".join(f"{f'{n} x':>30}" for n in tallies))
    print(*lines, sep="\n")
    print(
        f"at 100 x: {dead} of {len(lines)} end above guessing and above their first loss; {len(delays)} were seen, "
        f"after {min(delays)} to {max(delays)} observations (median {statistics.median(delays):g})"
    )


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "cases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    print(f"{'healthy unless said otherwise':<58}{'runs':>8}{'losses':>11}{'errors':>8}{'warnings':>10}")
    watch_recorded(options.cases)
    watch_made_up()
    watch_small_healthy()
    watch_language_models()
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
