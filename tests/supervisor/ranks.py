"""A script of a user for torchrun: counts steps together with the other ranks, saves, and goes on from what it saved."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume_from_checkpoint", type=Path)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    begin, total = 0, 0.0
    if given.resume_from_checkpoint is not None:
        state = torch.load(given.resume_from_checkpoint, weights_only=True)
        begin, total = state["step"], state["total"]
    (given.output_dir / f"pid-{rank}").write_text(str(os.getpid()))
    for step in range(begin + 1, given.steps + 1):
        value = torch.tensor([float(step)])
        dist.all_reduce(value)
        total += value.item()
        if rank == 0:
            print(f"step {step}: train loss {1 / step:.4f}", flush=True)
            if step % 5 == 0:
                save(given.output_dir / f"checkpoint-{step}.pt", step, total)
        time.sleep(0.05)
    if rank == 0:
        (given.output_dir / "result.json").write_text(json.dumps({"step": step, "total": total}))
    dist.destroy_process_group()


def save(path: Path, step: int, total: float) -> None:
    beside = path.with_suffix(".tmp")
    torch.save({"step": step, "total": total}, beside)
    beside.replace(path)


if __name__ == "__main__":
    main()
