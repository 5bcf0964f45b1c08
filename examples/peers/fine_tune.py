"""Weights trained on the digits 0 to 4 are loaded under other names; their body is frozen, and a new head learns 5 to 9."""

import os
import tempfile

import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def body():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU())


class Pretrained(nn.Module):
    """The network whose weights are in the file."""

    def __init__(self):
        super().__init__()
        self.features = body()
        self.classifier = nn.Linear(128, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body()
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.body(x))


def digits(low, high):
    pixels, labels = load_digits(return_X_y=True)
    rows = (low <= labels) & (labels <= high)
    return torch.tensor(pixels[rows] / 16, dtype=torch.float32), torch.tensor(labels[rows])


def fit(model, parameters, digits, epochs):
    """Trains `parameters` for some epochs, and returns the share of held-out digits that are classified correctly."""
    adam = torch.optim.Adam(parameters, lr=5e-3)
    x, test_x, y, test_y = train_test_split(*digits, test_size=0.2, random_state=7)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
            adam.zero_grad()
            loss.backward()
            adam.step()
    with torch.no_grad():
        return (model(test_x.to(DEVICE)).argmax(1).cpu() == test_y).float().mean().item()


def pretrain(path, epochs):
    """Stands for the program that wrote the file."""
    model = Pretrained().to(DEVICE)
    share = fit(model, model.parameters(), digits(0, 4), epochs)
    print(f"0 to 4: {100 * share:.1f} % of the held-out digits")
    save_file(model.state_dict(), path)


def run(path, epochs):
    """Loads the file, and returns the accuracy on held-out digits of 5 to 9 of a head that is trained alone."""
    torch.manual_seed(7)
    pretrain(path, epochs)
    model = Model().to(DEVICE)
    state = {name.replace("features.", "body."): tensor for name, tensor in load_file(path).items()}
    report = model.load_state_dict(state, strict=False)
    print(f"missing {report.missing_keys}, left {report.unexpected_keys}")
    model.body.requires_grad_(False)
    share = fit(model, model.head.parameters(), digits(5, 9), epochs)
    print(f"5 to 9: {100 * share:.1f} % of the held-out digits")
    return share


if __name__ == "__main__":
    run(os.path.join(tempfile.gettempdir(), "fine-tune.safetensors"), 10)
