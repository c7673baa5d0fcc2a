"""Tensors and trainings of which snapshots are taken, and what they are compared by."""

from __future__ import annotations

import torch
from torch import nn

from self_healing.tensors.host_slot import HostSlot

LONG = 1_000_000_000
"""Clock cycles for which a device is kept busy: about half a second."""


def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def noise(shape, dtype, seed=0, device="cpu"):
    """Return a tensor of any bits whatever, NaNs of all kinds among them."""
    size = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).view(shape).to(device)


def pinned_slot():
    """Return a slot that has its memory: to pin it later would wait for the device."""
    slot = HostSlot()
    slot.reserve(64 << 20, pinned=True)
    slot.numbers(100)
    return slot


def busy(stream=None):
    """Keep a stream occupied, so that all that comes after it is still to be done when the host goes on."""
    with torch.cuda.stream(stream or torch.cuda.current_stream()):
        torch.cuda._sleep(LONG)


def training(fused=True, dtype=torch.float32, width=1024):
    """Return a model on a device, its optimizer, and how they are trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)).cuda().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    data = torch.randn(8, 16, width, device="cuda", dtype=dtype)

    def train(steps=3):
        for step in range(steps):
            model(data[step]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, optimizer, train


def everything(model, optimizer):
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [bits(each) for each in (*model.parameters(), *model.buffers(), *moments)]
