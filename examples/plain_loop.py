"""A training loop of one's own under guard(): the two lines that were added are marked.

python examples/plain_loop.py                       # nothing happens: the weights are those of the bare loop
python examples/plain_loop.py --fault nan           # one loss is NaN: the update is held back, the step made up
python examples/plain_loop.py --fault weight        # a weight is broken: back to an earlier state, with its data
python examples/plain_loop.py --fault memory        # memory for two rows at a time: the batch goes in pieces
python examples/plain_loop.py --fault kill          # the process dies: run it again without a fault, and it goes on
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
from story import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from self_healing import HealingConfig, guard

FAULTS = ("none", "nan", "weight", "memory", "kill")
FAULT_AT = 25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--run-dir", default="out/plain_loop")
    arguments = parser.parse_args()
    fault = arguments.fault

    torch.manual_seed(0)
    x = torch.randn(160, 8)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    waits = {"nan", "weight", "kill"} & {fault}  # what happens once

    def loss_fn(batch):
        inputs, labels = batch
        if fault == "memory" and len(inputs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if "nan" in waits and run.step_number == FAULT_AT:
            waits.clear()
            return loss * float("nan")
        return loss

    config = HealingConfig(snapshot_every_steps=10)  # or a dictionary, or the path of a TOML file
    with guard(model, optimizer, scheduler, config=config, run_dir=arguments.run_dir) as run:  # <- one
        for _ in range(3):
            for batch in run.batches(loader):
                if run.step_number == FAULT_AT and waits & {"weight", "kill"}:
                    break_something(waits.pop(), model)
                with run.step(batch) as s:  # <- and two: backward, clipping, optimizer and scheduler are in it
                    s.backward(loss_fn, batch)
                if run.step_number % 20 == 0:
                    print(f"epoch {run.epoch} step {run.step_number} loss {float(s.loss):.4f}")
    print(f"weights sum to {sum(p.double().sum().item() for p in model.parameters()):.12f}")
    tell(arguments.run_dir)


def break_something(what: str, model: nn.Module) -> None:
    """Break a weight, or the process."""
    if what == "weight":
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
    else:
        time.sleep(1.0)  # what the newest state is about is written by a thread of its own
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
