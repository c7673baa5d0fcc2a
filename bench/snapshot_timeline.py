"""Where in the next forward pass a snapshot costs time, by when its copy sets out for the host.

A step, a snapshot, and the next forward pass up to a quarter, with marks on the device's own clock where layers begin;
beside it the same without a snapshot, in another order in each round. Needs a GPU; without one a tiny model shows that
the script runs, and no more: nothing has a head start there, because the copy is made in the training thread.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import time
from typing import Any

import torch
from snapshot import difference, synchronize
from snapshot_runs import CUDA, DEVICE, KINDS, Run
from torch import nn

from self_healing.tensors import carrying
from self_healing.tensors.host_slot import HostSlot

HEAD_STARTS_MS = (0.0, 2.5, 5.0, 10.0)


class EnoughError(Exception):
    """The forward pass has come as far as is of interest."""


class Marks:
    """Moments by the device's clock, or by the host's where there is no device."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def set(self) -> None:
        mark = torch.cuda.Event(enable_timing=True) if CUDA else time.perf_counter()
        if CUDA:
            mark.record()
        self._made.append(mark)

    def ms(self) -> list[float]:
        """Return the others as seen from the first."""
        first, *others = self._made
        return [first.elapsed_time(each) if CUDA else 1e3 * (each - first) for each in others]


class MarkedRun(Run):
    """A run whose forward pass sets marks where some of its layers begin, and ends after the last of them."""

    def __init__(self, name: str) -> None:
        super().__init__(KINDS[name])
        self.marks: Marks | None = None
        layers = next(m for m in self.model.modules() if isinstance(m, nn.ModuleList))
        quarter = max(1, len(layers) // 4)
        self.marked = sorted({0, 1, quarter * 3 // 8, quarter})
        for number in self.marked:
            layers[number].register_forward_pre_hook(lambda *_, is_last=number == quarter: self._mark(is_last=is_last))

    def _mark(self, *, is_last: bool) -> None:
        if self.marks is not None:
            self.marks.set()
            if is_last:
                raise EnoughError

    def turn(self, slot: HostSlot, head_start_ms: float | None) -> list[float]:
        """Return when each mark was reached after a step, with a snapshot unless there is none to have a head start on."""
        gc.collect()
        gc.disable()
        synchronize()
        self.steps(1)
        marks, copies = Marks(), None
        marks.set()
        if head_start_ms is not None:
            carrying.HEAD_START_S = head_start_ms / 1e3
            _, copies = self.collect(slot, "staged" if CUDA else "auto")
            copies.start()
            self.look_at_frozen()
        marks.set()
        self.marks = marks
        try:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.autocast):
                self.model(input_ids=self.batch, labels=self.batch)
        except EnoughError:
            self.marks = None
        synchronize()
        if copies is not None:
            copies.norms()
            self.frozen_is_sound()
        gc.enable()
        return marks.ms()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="7B-lora" if CUDA else "narrow", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=40 if CUDA else 3)
    options = parser.parse_args()
    run, slot = MarkedRun(options.model), HostSlot()
    run.steps(3)
    ways: list[float | None] = [None, *HEAD_STARTS_MS]
    found: dict[float | None, list[list[float]]] = {way: [] for way in ways}
    draw = random.Random(5)
    for _ in range(options.rounds + 1):
        for way in draw.sample(ways, len(ways)):
            found[way].append(run.turn(slot, way))
    columns = {way: list(zip(*each[1:], strict=True)) for way, each in found.items()}  # the first is a rehearsal
    print(f"{options.model}: ms after a step, at the end of the snapshot and where layers {run.marked} begin")
    print("no snapshot ".ljust(16) + "".join(f"{statistics.median(each):16.2f}" for each in columns[None]))
    for way in HEAD_STARTS_MS:
        later = [difference(list(a), list(b)) for a, b in zip(columns[way], columns[None], strict=True)]
        shown = [f"{ms:+.2f} +- {0.0 if math.isinf(error) else error:.2f}".rjust(16) for ms, error in later]
        print(f"after {way:g} ms".ljust(16) + "".join(shown), flush=True)


if __name__ == "__main__":
    main()
