"""Plain PyTorch; the decay swallows the weights."""

import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=50.0)
print(model, optimizer)
for step in range(5000):
    x = torch.randn(64, 32)
    y = (x.sum(dim=1) > 0).long()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
torch.save({"model": model.state_dict(), "step": step}, "last.pt")
