"""A plain training loop whose states lie in shared memory; run as a program it trains until it is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from self_healing.snapshots.shared_index import BlockMark, StateIndex
from self_healing.snapshots.shared_memory import SharedRun
from self_healing.snapshots.verdicts import Condition, StateVerdict
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture


def published(run, copies, step, **more):
    """Publish a snapshot that has settled."""
    described = copies.described()
    blocks = [BlockMark(file=b.file, size=b.size, used=b.used, hashes=b.hashes) for b in described.blocks]
    index = StateIndex(
        run=run.name, step=step, verdict=StateVerdict(Condition.INTACT, "finite"), created_s=0.0,
        slice_bytes=described.slice_bytes, blocks=blocks, left_out=described.left_out, **more,
    )  # fmt: skip
    slot = copies.slot.backing
    return slot.publish(slot.ticket(), index, described.fixed, described.others)


def made(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def trained_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()


def everything(model, optimizer):
    """Return what a state must hold, by name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors |= {f"gradient/{name}": p.grad for p, name in names.items() if p.grad is not None}
    for parameter, state in optimizer.state.items():
        tensors |= {f"optimizer.{key}/{names[parameter]}": value for key, value in state.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def main(base: str, out: str, kill_at: str, when: str) -> None:
    run = SharedRun.open("run", base=Path(base))
    slots = [HostSlot(run.slot()) for _ in range(2)]
    model, optimizer = made()
    for step in range(1, 100):
        trained_step(model, optimizer)
        torch.save(everything(model, optimizer), Path(out) / f"{step}.pt")
        copies = HostCopies(slots[step % 2])
        capture([model, optimizer], copies=copies)
        copies.start()
        if step == int(kill_at) and when == "before":  # the memory is written, the index is not there again
            os.kill(os.getpid(), signal.SIGKILL)
        assert published(run, copies, step)
        if step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
