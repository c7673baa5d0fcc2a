"""Counts what one more state of a run asks for: operations of torch, calls of Python. Needs no GPU, and is the same each time.

`bench/snapshot.py` says how long it takes, and needs a GPU. Where two versions of the code give the same counts here, what it
has measured of the one stands for the other, as far as kernels, copies and staging (`git diff` of `tensors/`) are the same.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from snapshot_runs import KINDS, Run
from torch.utils._python_dispatch import TorchDispatchMode

from self_healing.tensors.host_slot import HostSlot


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    torch.set_num_threads(1)
    for name in ("tiny", "narrow"):
        run, slot = Run(KINDS[name]), HostSlot()
        run.steps(2)
        for _ in range(3):  # the first finds out what there is, the others see that nothing has changed
            _, copies = run.collect(slot, "auto")
            slot.reserve(copies.nbytes + (1 << 20), pinned=False)
            copies.start()
            copies.norms()
            run.steps(1)
        operations = Operations()
        with operations:
            _, copies = run.collect(slot, "auto")
            copies.start()
            copies.norms()
        run.steps(1)
        calls: Counter[str] = Counter()
        sys.setprofile(lambda _frame, event, _argument, calls=calls: calls.update([event]))
        try:
            _, copies = run.collect(slot, "auto")
            copies.start()
        finally:
            sys.setprofile(None)
        copies.norms()
        print(
            f"{name}: {len(list(run.tensors()))} tensors, {copies.nbytes} bytes; {sum(operations.counts.values())} operations of torch, "
            f"{calls['call']} calls of Python, {calls['c_call']} of C"
        )
        print("  " + ", ".join(f"{count} {operation}" for operation, count in sorted(operations.counts.items())))


if __name__ == "__main__":
    main()
