"""What the guard does about each fault of the catalogue, beside the stock Trainer: one table, about two minutes.

Every row is a real training of 60 updates on the CPU with one planted fault. The spread of the clean run over data orders
says what a difference in the evaluation loss is worth. Where memory runs out, a stock Trainer with
`auto_find_batch_size=True` is run as well: it starts again with a smaller batch, and with it another recipe.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from self_healing import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer

ORDERS = range(100, 105)
"""Data seeds of the clean run."""
REPEATS = 3
"""Of which the median is the time."""
UNCLIPPED = {"max_grad_norm": 0.0}
"""A poisoned batch does harm only where the recipe does not clip by itself."""
COLUMNS = (
    "fault", "stock: ends", "eval loss", "updates", "finite", "auto_find_batch_size", "guarded: ends", "eval loss",
    "vs clean", "updates", "bits as clean", "made up", "replaced", "records left out", "retries", "extra forwards",
    "returns", "steps trained again", "seconds, guarded / clean",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How one training ended."""

    ending: str
    """`completed`, or the class of the exception it ended with."""
    eval_loss: float
    updates: int
    forwards: int
    """Forward passes over training batches or pieces of them, as the model saw them."""
    weights: torch.Tensor
    seconds: float
    figures: dict[str, float]
    """What the guard says of itself."""

    def figure(self, name: str) -> str:
        return f"{self.figures.get(f'healing/{name}', 0):g}"


def run(*, fault: Fault | None = None, guarded: bool = False, **arguments) -> Run:
    """Train once and look at what came of it."""
    trainer = tiny_trainer(tempfile.mkdtemp(), **arguments)
    trainer.remove_callback(transformers.PrinterCallback)
    forwards = count_forwards(trainer)
    if fault is not None:
        fault.plant(trainer)
    ending, metrics = "completed", {}
    began = time.perf_counter()
    try:
        metrics = (SelfHealingTrainer(trainer) if guarded else trainer).train().metrics
    except Exception as error:  # noqa: BLE001  # how it ended is what the table tells
        ending = type(error).__name__
    seconds = time.perf_counter() - began
    state = trainer.optimizer.state if trainer.optimizer is not None else {}
    # The optimizer's own count: a step that was skipped on the device is not in it.
    updates = int(next(iter(state.values()))["step"]) if state else 0
    model = trainer.model
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return Run(ending, clean_eval_loss(model), updates, len(forwards), weights, seconds, metrics)


def count_forwards(trainer) -> list[None]:
    seen: list[None] = []
    trainer.model.register_forward_pre_hook(lambda module, _: seen.append(None) if module.training else None)
    return seen


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


def with_auto_find(name: str, kind: Callable[[], Fault] | None, needs, clean: Run) -> str:
    """Say how a stock Trainer fares that looks for a batch size by itself; only where memory is the trouble."""
    if kind is None or not name.startswith("`oom"):
        return "-"
    found = run(fault=kind(), auto_find_batch_size=True, **needs)
    percent = 100 * (found.eval_loss / clean.eval_loss - 1)
    extra = found.forwards - clean.forwards
    return f"{found.ending}, {found.updates} updates, {percent:+.2f} %, {extra:+d} passes"


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    run(max_steps=5)  # the first training of a process pays for imports
    run(max_steps=5, guarded=True)
    clean = {}
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    found = discover_classes("self_healing.drills.faults", Fault)
    faults = {name: kind for name, kind in found.items() if kind.is_for_trainers}
    rows = [("none", None, {}), *((f"`{name}`", kind, kind.needs) for name, kind in faults.items())]
    rows.append(("`poisoned-batch`, recipe without clipping", faults["poisoned-batch"], UNCLIPPED))
    rows.append(("`raising-record`, 2 workers", faults["raising-record"], {"dataloader_num_workers": 2}))
    poisoned = faults["poisoned-batches"]
    rows.append(("`poisoned-batches`, recipe without clipping", poisoned, UNCLIPPED))
    rows.append(("`poisoned-batches`, noise without large losses", partial(poisoned, factor=1.0), {}))
    rows.append(("`moments-corrupted` by 100", partial(faults["moments-corrupted"], factor=100.0), {}))
    for name, kind, needs in rows:
        key = tuple(sorted(needs.items()))
        if key not in clean:
            repeats = [run(**needs) for _ in range(REPEATS)]
            clean[key] = repeats[0], statistics.median(found.seconds for found in repeats)
        without, seconds = clean[key]
        stock = run(fault=kind() if kind is not None else None, **needs)
        healed = [run(fault=kind() if kind is not None else None, guarded=True, **needs) for _ in range(REPEATS)]
        guarded = healed[0]
        percent = 100 * (guarded.eval_loss / without.eval_loss - 1)
        same = "yes" if torch.equal(guarded.weights, without.weights) else "no"
        ratio = statistics.median(found.seconds for found in healed) / seconds
        cells = (
            name, stock.ending, loss(stock.eval_loss), stock.updates, is_finite(stock),
            with_auto_find(name, kind, needs, without), guarded.ending, loss(guarded.eval_loss), f"{percent:+.2f} %",
            guarded.updates, same, guarded.figure("made_up_steps"), guarded.figure("replaced_steps"),
            guarded.figure("records_left_out"), guarded.figure("network_retries"), guarded.figure("extra_forwards"),
            guarded.figure("rollbacks"), guarded.figure("steps_lost"), f"{ratio:.2f}",
        )  # fmt: skip
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
    orders = [run(data_seed=seed).eval_loss for seed in ORDERS]
    base = clean[()][0].eval_loss
    shown = ", ".join(f"{100 * (value / base - 1):+.1f}" for value in orders)
    print(
        f"\nclean run, {len(ORDERS)} other data orders: {min(orders):.4f} .. {max(orders):.4f} ({shown} % of {base:.4f})"
    )


if __name__ == "__main__":
    main()
