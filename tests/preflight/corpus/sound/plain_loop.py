"""A plain loop: checks its surroundings, reports, saves, goes on where it was."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OUT = Path(os.environ.get("OUT_DIR", "out/plain"))
EPOCHS = int(os.environ.get("EPOCHS", "10"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def revision() -> str:
    """Return which code this is, where that can be told."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"unknown ({done.stderr.strip()})"


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"out": str(OUT), "epochs": EPOCHS, "device": DEVICE, "code": revision()}))
    with contextlib.suppress(FileNotFoundError):
        (OUT / "stop").unlink()

    torch.manual_seed(1)
    x = torch.randn(10_000, 20)
    y = (x[:, :5].sum(dim=1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    first = 0
    try:
        saved = torch.load(OUT / "last.pt", map_location=DEVICE)
    except FileNotFoundError:
        print("no checkpoint yet: starting anew")
    else:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
        print("going on at epoch", first)

    for epoch in range(first, EPOCHS):
        total = 0.0
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, OUT / "last.pt")
        if (OUT / "stop").exists():
            print("asked to stop")
            break


if __name__ == "__main__":
    main()
