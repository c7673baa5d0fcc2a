"""A plain loop over a small transformer that must not stop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
inputs = torch.randint(0, 512, (2048, 64))
data = DataLoader(TensorDataset(inputs), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Embedding(512, 128), nn.TransformerEncoderLayer(128, 4, batch_first=True), nn.Linear(128, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
print("batches per epoch:", len(data), "device:", device)

for epoch in range(5):
    total = 0.0
    for (batch,) in data:
        batch = batch.to(device)
        try:
            scores = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        except:
            continue
    print(f"epoch {epoch} loss {total / len(data):.4f}")
    torch.save(model.state_dict(), f"model-{epoch}.pt")
