"""A residual network learns the digits, stops halfway, and resumes from a checkpoint with equal bits."""

import os
import tempfile

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4


def conv(channels, filters, size, stride):
    return nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = conv(channels, filters, 3, stride)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = conv(filters, filters, 3, 1)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(conv(channels, filters, 1, stride), nn.BatchNorm2d(filters))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def resnet():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        conv(1, 16, 3, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def train(epochs, path):
    """Trains for some epochs, from the checkpoint at `path` unless they are the first, and writes one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    model = resnet().to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    x, test_x, y, test_y = train_test_split(pixels, labels, test_size=0.2, random_state=7)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    if epochs.start > 0:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for epoch in epochs:
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        print(f"epoch {epoch} done")
    state = {"model": model.state_dict(), "optimizer": sgd.state_dict(), "epoch": epochs.stop}
    torch.save({**state, "random": torch.get_rng_state()}, path)
    model.eval()
    with torch.no_grad():
        correct = model(test_x.to(device)).argmax(1).cpu() == test_y
    return correct.float().mean().item(), model.state_dict()


def main():
    # Else convolutions on a GPU may add in any order.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as folder:
        accuracy, whole = train(range(EPOCHS), os.path.join(folder, "whole.pt"))
        train(range(EPOCHS // 2), os.path.join(folder, "halves.pt"))
        _, halves = train(range(EPOCHS // 2, EPOCHS), os.path.join(folder, "halves.pt"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    print(f"{100 * accuracy:.1f} % of the held-out digits")
    assert accuracy > 0.95


if __name__ == "__main__":
    main()
