"""An autoencoder for sensor readings."""

import torch
from torch import nn
from torch.utils.data import DataLoader

EPOCHS = 200


class Autoencoder(nn.Module):
    def __init__(self, width=64, hidden=8):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, hidden))
        self.up = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    readings = torch.randn(20_000, 64)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(readings, batch_size=256, shuffle=True)
    for _ in range(EPOCHS):
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "autoencoder.pt")


if __name__ == "__main__":
    main()
