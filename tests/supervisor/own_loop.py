"""A loop of a user's own under guard(): `python own_loop.py OUTPUT [KILL]`; kills itself once, writes a hash of its weights."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from self_healing import HealingConfig, guard


def main() -> None:
    output, kills_at = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
    loader = DataLoader(TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,))), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    marker = output / "killed.txt"
    with guard(model, optimizer, schedule, config=HealingConfig(snapshot_every_steps=3), run_dir=output) as run:
        for _ in range(3):
            for batch in run.batches(loader):
                if run.step_number == kills_at and not marker.exists():
                    marker.write_text("once")
                    time.sleep(1.0)  # the index of the newest state is written by a thread of its own
                    os.kill(os.getpid(), signal.SIGKILL)
                with run.step(batch) as s:
                    s.backward(lambda each: nn.functional.cross_entropy(model(each[0]), each[1]), batch)
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        (output / "weights.txt").write_text(f"{run.step_number} {digest.hexdigest()}")


if __name__ == "__main__":
    main()
