"""A network learns the prices of houses from a CSV file."""

import os
import random
import tempfile

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def write_table(path):
    """Writes a table of invented houses, with prices in hundred thousands."""
    generator = random.Random(7)
    rows = []
    for _ in range(1000):
        area, rooms, age = generator.randrange(40, 200), generator.randrange(1, 7), generator.randrange(80)
        price = area * (0.03 - 0.0002 * age) + 0.1 * rooms
        price *= 0.95 + 0.1 * generator.random()
        rows.append((area, rooms, round(price, 2), age))
    pd.DataFrame(rows, columns=["area", "rooms", "price", "age"]).to_csv(path, index=False)


def train(path, epochs):
    """Trains on the table at `path`, and returns the share of the prices' variance that is explained."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    write_table(path)
    table = pd.read_csv(path, dtype="float32")
    features, prices = table.drop(columns="price"), table["price"]
    data = TensorDataset(torch.tensor(features.values), torch.tensor(prices.values))
    train_set, test_set = random_split(data, [0.8, 0.2])
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    test_x, test_y = (tensor.to(device) for tensor in test_set[:])
    # The first layer standardises the columns.
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    explained = 0.0
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            loss = F.mse_loss(model(x.to(device)).squeeze(1), y.to(device))
            adam.zero_grad()
            loss.backward()
            adam.step()
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(test_x).squeeze(1), test_y)
        explained = (1 - error / test_y.var(correction=0)).item()
        print(f"epoch {epoch:2}: {100 * explained:.1f} % of the variance explained")
    return explained


if __name__ == "__main__":
    train(os.path.join(tempfile.gettempdir(), "houses.csv"), 20)
