"""Real checkpoint folders, as a Trainer writes them; torch is imported only when one is asked for."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest


def write_checkpoint(output_dir, step, *, weights="whole", optimizer=True, seed=0):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
    optim = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optim, 10)
    model(torch.ones(2, 16)).sum().backward()
    optim.step()
    schedule.step()
    folder = output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    tensors = dict(model.state_dict())
    if weights == "whole":
        save_file(tensors, folder / "model.safetensors")
    elif weights == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif weights == "adapter":
        save_file(tensors, folder / "adapter_model.safetensors")
    elif weights == "adapters":
        for name in ("first", "second"):
            (folder / name).mkdir()
            save_file(tensors, folder / name / "adapter_model.safetensors")
    elif weights == "shards":
        shards = {name: f"model-0000{1 + i // 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
        for shard in set(shards.values()):
            save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    if optimizer:
        torch.save(optim.state_dict(), folder / "optimizer.pt")
        torch.save(schedule.state_dict(), folder / "scheduler.pt")
        torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function that writes `checkpoint-N` under the test's folder."""
    return lambda step=30, **how: write_checkpoint(tmp_path, step, **how)


@pytest.fixture
def flip_bit():
    """Return a function that flips one bit in the middle of a file, its size and time unchanged otherwise."""

    def flip(path, place=None):
        content = bytearray(path.read_bytes())
        content[len(content) // 2 if place is None else place] ^= 0x10
        path.write_bytes(bytes(content))

    return flip


@pytest.fixture
def base():
    """A folder of the real shared memory, in the place of /dev/shm itself."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no shared memory here")
    folder = Path(tempfile.mkdtemp(prefix="test-self-healing-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
