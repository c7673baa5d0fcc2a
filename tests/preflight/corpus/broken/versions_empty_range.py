# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.8,<2.6",
#     "numpy>=1.26",
# ]
# ///
"""Fit a small network to a noisy curve."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
x = torch.tensor(rng.uniform(-3, 3, (4096, 1)), dtype=torch.float32)
y = torch.sin(x) + 0.1 * torch.randn_like(x)
net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
print("steps 2000, batch 256, lr 1e-3")
for step in range(2000):
    rows = torch.randint(0, len(x), (256,))
    loss = nn.functional.mse_loss(net(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
torch.save(net.state_dict(), "curve.pt")
