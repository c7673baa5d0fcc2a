"""What a snapshot of a training run costs: how long training waits for it, how long it takes, how fast it is put back.

Plain loops over Llamas of random weights, in turns with and without a snapshot after the first of a few steps; the
device is waited for only at the ends of a turn, so that all the time the host takes for a snapshot, and is not ahead of
the device, counts. Where the copy is over before the next forward pass is a quarter done, the stall is what comes until
there by the device's own clock: whole turns of a large model with a small state scatter by more than it takes. The copy
is what it takes from its start, after the host has looked for what to copy, until everything is in host memory, with
nothing else going on. To explain what training waits: the time of the host for the first snapshot, which looks for
everything, and for later ones, and what the device takes to stage the state and to compute its norms, which it does
beside training. Staged: through a copy on the device. Direct: from the tensors themselves, the optimizer's step waits.
The limits are 5 % of the copy, and where it is direct, besides, what the copy takes longer than forward and backward
pass. Needs one GPU with 141 GB and 128 GiB of host memory for all of it; without a GPU a tiny model shows that the
script runs, and no more.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import psutil
import torch
from snapshot_limits import GB, Restored, Row, judged, missed, table
from snapshot_runs import CUDA, DEVICE, KINDS, Run

from self_healing.snapshots.spacing import failures_per_second, steps_between
from self_healing.tensors import carrying
from self_healing.tensors.arrivals import measure_loads
from self_healing.tensors.carrying import staged
from self_healing.tensors.host_slot import HostSlot
from self_healing.tensors.side_stream import measuring_stream

COPIES = 7
PUT_BACK = ("1B", "tiny"), ("staged", "auto")
"""The models and the ways of which a state is put back as well."""


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(do: Callable[[], Any]) -> float:
    """Return how long something takes on an idle device, with all that it starts in the training stream."""
    gc.disable()
    try:
        synchronize()
        began = time.perf_counter()
        do()
        if CUDA:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - began
    finally:
        gc.enable()


def scatter_of_median(values: list[float]) -> float:
    """Return the standard error of a median, by drawing as many values again and again from those there are."""
    draw = random.Random(11)
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(1000)]
    return statistics.stdev(medians) if len(values) > 1 else math.inf


def difference(longer: list[float], shorter: list[float]) -> tuple[float, float]:
    """Return the median of paired differences and its standard error."""
    differences = [a - b for a, b in zip(longer, shorter, strict=True)]
    return statistics.median(differences), scatter_of_median(differences)


def plain_copy() -> float:
    """Return the bandwidth of one large copy to memory that torch has pinned, in bytes a second; the best of five."""
    if not CUDA:
        return math.nan
    source = torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    return source.numel() / min(seconds(lambda: target.copy_(source, non_blocking=True)) for _ in range(5))


@dataclasses.dataclass
class Figures:
    """One way of one model."""

    copy_s: float
    added_bytes: int
    first_host_s: float
    """What the host takes for a snapshot that looks for everything."""
    collect_s: float
    """What it takes later on to see that nothing has changed, ..."""
    start_s: float
    """... and to start the copy."""
    staging_s: float
    steps: int = 0
    """How many steps a turn has."""
    without: list[float] = dataclasses.field(default_factory=list)
    with_snapshot: list[float] = dataclasses.field(default_factory=list)
    gaps: list[float] = dataclasses.field(default_factory=list)
    """What lies between the steps before and after a snapshot, by the device's own clock."""
    early_without: list[float] = dataclasses.field(default_factory=list)
    early_with: list[float] = dataclasses.field(default_factory=list)
    """From the end of the first step to the first quarter of the next forward pass, by the device's own clock."""


def copied(run: Run, slot: HostSlot, way: str) -> Figures:
    """Copy a few times with nothing else going on, as it is done beside training, only without a head start for that."""
    times, collecting, starting, added = [], [], [], 0
    head_start_s, carrying.HEAD_START_S = carrying.HEAD_START_S, 0.0
    slot.gathered, slot.arrangement = {}, None  # the first one finds nothing it could use
    for _ in range(COPIES):
        synchronize()
        before = _allocated_bytes("current")
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        _, copies = run.collect(slot, way)
        collected = time.perf_counter()
        copies.start()
        started = time.perf_counter()
        while not copies.is_complete():  # whoever waits for it has it sent in a hurry
            time.sleep(2e-5)
        times.append(time.perf_counter() - collected)
        collecting.append(collected - began)
        starting.append(started - collected)
        added = max(added, _allocated_bytes("peak") - before)
        copies.norms()  # waits until the memory is hashed
    carrying.HEAD_START_S = head_start_s
    first = collecting[0] + starting[0]
    return Figures(statistics.median(times), added, first, min(collecting[1:]), min(starting[1:]), on_the_device(slot))


def on_the_device(slot: HostSlot) -> float:
    """Return what it takes the device to stage everything and to compute its norms; the host is ahead of it."""
    staging = [(piece, how) for piece, how in slot.arrangement.staging.items() if not piece.is_direct]
    times = []
    for _ in range(3 if CUDA and staging else 0):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        synchronize()
        torch.cuda._sleep(200_000_000)  # noqa: SLF001  # clock cycles, a tenth of a second
        begin.record()
        loads = [staged(piece, how) for piece, how in staging]
        found = measure_loads([load for load in loads if load is not None])
        torch.cuda.current_stream().wait_stream(measuring_stream(DEVICE))
        end.record()
        synchronize()
        del loads, found
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times, default=math.nan)


def _allocated_bytes(which: str) -> int:
    return torch.cuda.memory_stats()[f"allocated_bytes.all.{which}"] if CUDA else 0


def measure(name: str, way: str, folder: str | None, rounds: int | None) -> Row:
    kind = KINDS[name]
    run = Run(kind)
    run.steps(3)
    step_s = statistics.median(seconds(lambda: run.steps(1)) for _ in range(3))
    passes = []
    for _ in range(3):
        passes.append(seconds(run.forward_and_backward))
        run.optimizer.zero_grad(set_to_none=True)
    passes_s = statistics.median(passes)
    gc.collect()
    gc.freeze()  # what lives as long as the model need not be looked through before each turn
    slot = HostSlot()
    _, copies = run.collect(slot, way)
    pin_s = seconds(lambda: slot.reserve(copies.nbytes + (1 << 20), pinned=CUDA))
    copies.start()
    hashed_s = seconds(copies.norms)
    figures = copied(run, slot, way)
    steps = 1 + math.ceil(1.5 * figures.copy_s / step_s) if CUDA else 3
    in_turns(run, slot, way, figures, steps, rounds or kind.rounds)
    plain = plain_copy()
    print(
        f"\n{name}: {copies.nbytes / GB:.2f} GB kept, {'pinned' if CUDA else 'taken'} once in {pin_s:.2f} s, hashed in "
        f"{hashed_s:.2f} s meanwhile; step {1e3 * step_s:.1f} ms, forward and backward {1e3 * passes_s:.1f} ms; "
        f"one large tensor: {plain / GB:.1f} GB/s"
    )
    row = tell(name, way, figures, copies.nbytes, step_s, passes_s)
    models, ways = PUT_BACK
    return (
        dataclasses.replace(row, restored=put_back(run, slot, way, folder)) if name in models and way in ways else row
    )


def in_turns(run: Run, slot: HostSlot, way: str, figures: Figures, steps: int, rounds: int) -> None:
    """Train in turns with and without a snapshot, in another order each time."""
    draw = random.Random(7)
    figures.steps = steps
    for _ in range(rounds + 1):
        gc.collect()  # here, for otherwise it falls into some turns and not into others
        for has_snapshot in draw.sample([False, True], 2):
            kept: list[Any] = []
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if CUDA else []
            took = seconds(
                lambda kept=kept, marks=marks, has=has_snapshot: turn(run, slot, way if has else "", steps, kept, marks)
            )
            if kept:
                kept[1].norms()  # the next turn begins when everything of this one is over
                run.frozen_is_sound()
            gap, early = [marks[0].elapsed_time(mark) / 1e3 for mark in marks[1:]] or [math.nan, math.nan]
            if has_snapshot:
                figures.gaps.append(gap)
            (figures.with_snapshot if has_snapshot else figures.without).append(took)
            (figures.early_with if has_snapshot else figures.early_without).append(early)
    for each in (figures.without, figures.with_snapshot, figures.gaps, figures.early_without, figures.early_with):
        del each[0]  # the first round is a rehearsal


def turn(run: Run, slot: HostSlot, way: str, steps: int, kept: list[Any], marks: list[Any]) -> None:
    """Train a few steps, with a snapshot after the first where a way is named."""
    run.steps(1)
    for mark in marks[:1]:
        mark.record()
    if way:
        kept += run.collect(slot, way)
        kept[1].start()
        run.look_at_frozen()
    for mark in marks[1:2]:
        mark.record()
    run.early = marks[2] if marks else None
    run.steps(steps - 1)


def tell(name: str, way: str, each: Figures, nbytes: int, step_s: float, passes_s: float) -> Row:
    without = statistics.median(each.without)
    stall_s, scatter_s = difference(each.with_snapshot, each.without)
    by = "of turns"
    head_start_s = carrying.HEAD_START_S if way == "staged" else 0.0
    is_over_early = each.copy_s + head_start_s < 0.8 * statistics.median(each.early_without)
    if CUDA and is_over_early:  # before the forward pass is far
        early = difference(each.early_with, each.early_without)
        print(f"  whole turns: stall {1e3 * stall_s:+8.2f} ms, standard error {1e3 * scatter_s:.2f}")
        (stall_s, scatter_s), by = early, "of the first quarter of the next forward pass"
    rate = failures_per_second(0, 0.0)
    interval = steps_between(stall_s=max(0.0, stall_s), step_s=step_s, failure_rate=rate, max_lost_steps=100)
    share = max(0.0, stall_s) / (interval * without / each.steps)
    row = Row(name, way, nbytes, each.added_bytes, each.copy_s, passes_s, stall_s, scatter_s, share)
    print(
        f"  {way:10s} copy {1e3 * each.copy_s:8.2f} ms   host {1e3 * each.first_host_s:.2f} ms at first, then "
        f"{1e3 * each.collect_s:.2f} to collect and {1e3 * each.start_s:.2f} to start   staging and norms "
        f"{1e3 * each.staging_s:.2f} ms of the device   between two steps {1e3 * statistics.median(each.gaps):.2f} ms   stall "
        f"{1e3 * stall_s:+8.2f} ms {by}, turns of {each.steps} steps; a state every {interval} steps",
        flush=True,
    )
    return row


def put_back(run: Run, slot: HostSlot, way: str, folder: str | None) -> Restored:
    """Put a snapshot back, and where a folder is given the same state from a file."""
    held, copies = run.collect(slot, way)
    copies.start()
    copies.norms()
    expected = {name: tensor.clone() for name, tensor in run.tensors()}
    run.steps(1)
    stepped = [name for name, tensor in run.tensors() if not torch.equal(tensor, expected[name])]
    assert stepped, "a step has changed nothing, so that nothing can be told by putting it back"
    verify_s = seconds(copies.verify)

    def restore() -> None:
        held.restore()
        copies.after_restore()

    restore_s = seconds(restore)
    different = tuple(name for name, tensor in run.tensors() if not torch.equal(tensor, expected.pop(name)))
    print(
        f"  put back: checked {1e3 * verify_s:.0f} ms, copied {1e3 * restore_s:.0f} ms; {len(stepped)} tensors had changed, "
        f"{len(different)} are different now",
        flush=True,
    )
    if folder is None:
        return Restored(verify_s, restore_s, different)
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        path = Path(directory) / "state.pt"

        def save() -> None:
            torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, path)

        def load() -> None:
            loaded = torch.load(path, map_location=DEVICE, weights_only=True)
            run.model.load_state_dict(loaded["model"])
            run.optimizer.load_state_dict(loaded["optimizer"])

        save_s, load_s = seconds(save), seconds(load)
    print(
        f"  torch.save {save_s:.2f} s, torch.load {load_s:.2f} s ({folder}): {load_s / (verify_s + restore_s):.0f} x as long",
        flush=True,
    )
    return Restored(verify_s, restore_s, different, load_s)


def lacks_room_for(name: str) -> str:
    """Say what a model needs that is not there; empty where there is room."""
    kind = KINDS[name]
    device = torch.cuda.mem_get_info()[0] / GB if CUDA else 0.0
    host = psutil.virtual_memory().available / GB
    if device >= kind.device_gb and host >= kind.host_gb:
        return ""
    return (
        f"{name}: not measured, it needs {kind.device_gb:.0f} GB on the device (free: {device:.0f}) and "
        f"{kind.host_gb:.0f} on the host (free: {host:.0f})"
    )


def measured(name: str, way: str, folder: str | None, rounds: int | None) -> Row | str:
    """Measure in a process of its own: a run has one way, and what another has left in a process is no part of it."""
    if not CUDA:
        torch.set_num_threads(1)
    if lacking := lacks_room_for(name):
        return lacking
    began = time.perf_counter()
    row = measure(name, way, folder, rounds)
    print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="136M,1B,7B-lora,7B" if CUDA else "tiny,narrow")
    parser.add_argument(
        "--ways", default="staged,direct" if CUDA else "auto", help="also: unmeasured (staged, without norms)"
    )
    parser.add_argument("--rounds", type=int, help="how many turns with and without a snapshot")
    parser.add_argument("--save", action="store_true", help="compare with torch.save and torch.load too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where torch.save writes to")
    options = parser.parse_args()
    if not CUDA:
        print(
            "no GPU: a tiny model on the CPU, copied in the training thread; no figure here says anything about a GPU",
            flush=True,
        )
    folder = options.folder if options.save else None
    found = []
    for name in options.models.split(","):
        for way in options.ways.split(","):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                found.append(process.submit(measured, name, way, folder, options.rounds).result())
    rows = [each for each in found if isinstance(each, Row)]
    print("\n" + table(rows))
    if not CUDA:
        return
    for row in rows:
        print(*(f"{row.model} {row.way}: {each}" for each in judged(row)), sep="\n")
    not_measured = [each for each in found if isinstance(each, str)]
    if problems := not_measured + missed(rows):
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
