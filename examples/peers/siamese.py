"""A siamese network learns from pairs of digits whether both are the same, by a contrastive loss."""

import random
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

MARGIN = 1.0


def pairs(images, labels):
    """Each image with another one: pairs `[n, 2, 64]`, and 1 where both show the same digit, as every second one does, else 0."""
    generator = random.Random(7)
    partners, same = [], []
    for row, label in enumerate(labels):
        partner = generator.randrange(len(labels))
        while (labels[partner] == label) != (row % 2 == 0):
            partner = generator.randrange(len(labels))
        partners.append(partner)
        same.append(1.0 if row % 2 == 0 else 0.0)
    images = torch.tensor(images / 16, dtype=torch.float32)
    return torch.stack([images, images[partners]], 1), torch.tensor(same)


def distances(model, pairs):
    """The distances of pairs `[n, 2, 64]`, `[n]`."""
    one, other = pairs.unbind(1)
    return F.pairwise_distance(model(one), model(other))


def train(epochs):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    digits = load_digits()
    x, test_x, y, test_y = train_test_split(digits.data, digits.target, test_size=0.2, random_state=7)
    loader = DataLoader(TensorDataset(*pairs(x, y)), batch_size=64, shuffle=True)
    test, test_same = (tensor.to(device) for tensor in pairs(test_x, test_y))
    share = 0.0
    for epoch in range(epochs):
        for images, same in loader:
            images, same = images.to(device), same.to(device)
            distance = distances(model, images)
            apart = F.relu(MARGIN - distance).square()
            loss = (same * distance.square() + (1 - same) * apart).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        with torch.no_grad():
            near = distances(model, test) < MARGIN / 2
        share = (near == test_same).float().mean().item()
        print(f"epoch {epoch:2}: {100 * share:.1f} % of the held-out pairs")
    return share


if __name__ == "__main__":
    train(10)
