"""Plain loop in mixed precision on a T4."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
print("3000 steps of 256 rows, bfloat16")
for step in range(3000):
    x = torch.randn(256, 512, device="cuda")
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.5f}")
torch.save(model.state_dict(), "mlp.pt")
