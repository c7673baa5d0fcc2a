"""What the guard does about each fault of the catalogue, beside what the stock Trainer does: one table, about a minute.

Every row is a real training of 60 updates on the CPU with one planted fault. The spread of the clean run over data orders
says what a difference in the evaluation loss is worth.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from self_healing import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer

ORDERS = range(100, 105)
"""Data seeds of the clean run."""
UNCLIPPED = {"max_grad_norm": 0.0}
"""A poisoned batch does harm only where the recipe does not clip by itself."""


@dataclass(frozen=True)
class Run:
    """How one training ended."""

    ending: str
    """`completed`, or the class of the exception it ended with."""
    eval_loss: float
    updates: int
    weights: torch.Tensor
    seconds: float
    made_up: int = 0
    replaced: int = 0


def run(*, fault: Fault | None = None, guarded: bool = False, **arguments) -> Run:
    """Train once and look at what came of it."""
    trainer = tiny_trainer(tempfile.mkdtemp(), **arguments)
    trainer.remove_callback(transformers.PrinterCallback)
    if fault is not None:
        fault.plant(trainer)
    ending, metrics = "completed", {}
    began = time.perf_counter()
    try:
        metrics = (SelfHealingTrainer(trainer) if guarded else trainer).train().metrics
    except Exception as error:  # noqa: BLE001  # how it ended is what the table tells
        ending = type(error).__name__
    seconds = time.perf_counter() - began
    state = trainer.optimizer.state
    # The optimizer's own count: a step that was skipped on the device is not in it.
    updates = int(next(iter(state.values()))["step"]) if state else 0
    model = trainer.model
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return Run(
        ending, clean_eval_loss(model), updates, weights, seconds,
        metrics.get("healing/made_up_steps", 0), metrics.get("healing/replaced_steps", 0),
    )  # fmt: skip


def clean_eval_loss(model) -> float:
    """Evaluate the weights alone: a copy without the hooks by which faults are planted."""
    trainer = tiny_trainer(tempfile.mkdtemp())
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.model.load_state_dict(model.state_dict())
    return trainer.evaluate()["eval_loss"]


def is_finite(found: Run) -> str:
    return "yes" if bool(found.weights.isfinite().all()) else "**no**"


def loss(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else str(value)


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    run(max_steps=5)  # the first training of a process pays for imports
    run(max_steps=5, guarded=True)
    clean = {}
    print("| fault | stock: ends | eval loss | updates | finite | guarded: ends | eval loss | vs clean | updates | bits as clean "
          "| made up | replaced | seconds, guarded / clean |")  # fmt: skip
    print("|---" * 13 + "|")
    faults = discover_classes("self_healing.drills.faults", Fault)
    rows = [("none", None, {}), *((f"`{name}`", kind, kind.needs) for name, kind in faults.items())]
    rows.append(("`poisoned-batch`, recipe without clipping", faults["poisoned-batch"], UNCLIPPED))
    for name, kind, needs in rows:
        key = tuple(sorted(needs.items()))
        if key not in clean:
            repeats = [run(**needs) for _ in range(3)]
            clean[key] = repeats[0], statistics.median(found.seconds for found in repeats)
        without, seconds = clean[key]
        stock = run(fault=kind() if kind is not None else None, **needs)
        healed = [run(fault=kind() if kind is not None else None, guarded=True, **needs) for _ in range(3)]
        guarded = healed[0]
        percent = 100 * (guarded.eval_loss / without.eval_loss - 1)
        same = "yes" if torch.equal(guarded.weights, without.weights) else "no"
        ratio = statistics.median(found.seconds for found in healed) / seconds
        print(f"| {name} | {stock.ending} | {loss(stock.eval_loss)} | {stock.updates} | {is_finite(stock)} "
              f"| {guarded.ending} | {loss(guarded.eval_loss)} | {percent:+.2f} % | {guarded.updates} | {same} "
              f"| {guarded.made_up} | {guarded.replaced} | {ratio:.2f} |")  # fmt: skip
    orders = [run(data_seed=seed).eval_loss for seed in ORDERS]
    base = clean[()][0].eval_loss
    shown = ", ".join(f"{100 * (value / base - 1):+.1f}" for value in orders)
    print(
        f"\nclean run, {len(ORDERS)} other data orders: {min(orders):.4f} .. {max(orders):.4f} ({shown} % of {base:.4f})"
    )


if __name__ == "__main__":
    main()
