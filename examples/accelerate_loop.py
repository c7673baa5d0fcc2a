"""A loop with accelerate, gradients accumulated over two batches, its own backward and optimizer.step.

python examples/accelerate_loop.py
python examples/accelerate_loop.py --fault nan       # the update is held back, and the batch handed out again
python examples/accelerate_loop.py --fault weight    # back to an earlier state, with its data
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from story import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from self_healing import HealingConfig, guard

FAULT_AT = 15


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("none", "nan", "weight"), default="none")
    parser.add_argument("--run-dir", default="out/accelerate_loop")
    arguments = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    x = torch.randn(160, 8)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    waits = {arguments.fault} - {"none"}

    config = HealingConfig(snapshot_every_steps=5)
    with guard(model, optimizer, accelerator=accelerator, config=config, run_dir=arguments.run_dir) as run:
        for _ in range(2):
            for inputs, labels in run.batches(loader):
                if run.step_number == FAULT_AT and "weight" in waits:
                    waits.clear()
                    with torch.no_grad():
                        model[0].weight[0, 0] = float("nan")
                with run.step() as s, accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    if run.step_number == FAULT_AT and "nan" in waits:
                        waits.clear()
                        loss = loss * float("nan")
                    s.loss = loss  # so that rules have a loss to look at
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if run.step_number % 10 == 0:
                    print(f"epoch {run.epoch} step {run.step_number} loss {float(s.loss):.4f}")
    print(f"weights sum to {sum(p.double().sum().item() for p in model.parameters()):.12f}")
    tell(arguments.run_dir)


if __name__ == "__main__":
    main()
