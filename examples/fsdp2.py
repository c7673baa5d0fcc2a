"""A loop of one's own on several processes that share the weights (FSDP2): the two lines that were added are marked.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1   # restarts of torchrun find each other; `heal run -- torchrun ...` sets it itself
run="torchrun --standalone --nproc-per-node 2 --max-restarts 2"
$run examples/fsdp2.py                    # nothing happens: the weights are those of the bare loop
$run examples/fsdp2.py --fault nan        # one rank's loss is NaN: both hold the update back and make the step up
$run examples/fsdp2.py --fault weight     # one rank's weight is broken: both return to an earlier state, with their data
$run examples/fsdp2.py --fault memory     # one rank has memory for four rows: both start again, and go on in pieces of four
$run examples/fsdp2.py --fault kill       # one rank is killed: torchrun starts both again, and they go on from shared memory
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from story import tell
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from self_healing import HealingConfig, guard

FAULTS = ("none", "nan", "weight", "memory", "kill")
FAULT_AT = 25


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.line(self.norm(x)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--run-dir", default="out/fsdp2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank = dist.get_rank()

    torch.manual_seed(0)  # the same weights and data on every rank
    x = torch.randn(320, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    blocks = [fully_shard(Block()), fully_shard(Block())]  # each is gathered when it runs
    model = fully_shard(nn.Sequential(nn.Linear(8, 32), *blocks, nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    fault = arguments.fault if rank == 1 else "none"  # on one rank alone
    killed = Path(arguments.run_dir) / f"killed-{os.environ['TORCHELASTIC_RUN_ID']}"  # in this launch of torchrun
    waits = {fault} & {"nan", "weight", "kill"} if not killed.exists() else set()  # what happens once

    def loss_fn(batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if fault == "memory" and len(inputs) > 4 and run.step_number >= FAULT_AT:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if "nan" in waits and run.step_number == FAULT_AT:
            waits.clear()
            return loss * float("nan")
        return loss

    config = HealingConfig(snapshot_every_steps=8)  # the same on every rank
    with guard(model, optimizer, scheduler, config=config, run_dir=arguments.run_dir) as run:  # <- one
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in run.batches(loader):
                if run.step_number == FAULT_AT and waits & {"weight", "kill"}:
                    break_something(waits.pop(), model, killed)
                with run.step(batch) as s:  # <- and two: backward, clipping, optimizer and scheduler are in it
                    s.backward(loss_fn, batch)
                if run.step_number % 20 == 0 and rank == 0:
                    print(f"epoch {run.epoch} step {run.step_number} loss {float(s.loss):.4f}")
    whole = [parameter.full_tensor() for parameter in model.parameters()]  # on all ranks: each holds a part
    if rank == 0:
        print(f"weights sum to {sum(each.double().sum().item() for each in whole):.12f}")
        tell(arguments.run_dir)
    dist.barrier()
    dist.destroy_process_group()


def break_something(what: str, model: nn.Module, killed: Path) -> None:
    """Break a weight of this rank's part, or its process."""
    if what == "weight":
        with torch.no_grad():
            next(model.parameters()).to_local()[0, 0] = float("nan")
    else:
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
