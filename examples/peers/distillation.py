"""A small student learns the digits from a large teacher's softened probabilities."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TEMPERATURE = 2.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def soft_loss(student, teacher):
    """The divergence of the student's probabilities from the teacher's, both at a high temperature."""
    student = F.log_softmax(student / TEMPERATURE, 1)
    teacher = F.softmax(teacher / TEMPERATURE, 1)
    return F.kl_div(student, teacher, reduction="batchmean") * TEMPERATURE**2


def train(name, model, loader, test, epochs, loss):
    """Trains a model by a loss of scores and a batch, and returns its accuracy on `test`."""
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for x, y in loader:
            x, y = x.to(DEVICE), y.to(DEVICE)
            adam.zero_grad()
            loss(model(x), x, y).backward()
            adam.step()
    x, y = test
    with torch.no_grad():
        share = (model(x.to(DEVICE)).argmax(1).cpu() == y).float().mean().item()
    print(f"{name}: {100 * share:.1f} % of the held-out digits")
    return share


def run(epochs):
    """The accuracy of the teacher and of the student, which has 1,210 parameters in place of 85,002."""
    torch.manual_seed(7)
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    x, test_x, y, test_y = train_test_split(pixels, labels, test_size=0.2, random_state=7)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    teacher = nn.Sequential(*layers).to(DEVICE)
    student = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).to(DEVICE)

    def soft_and_hard(scores, x, y):
        with torch.no_grad():
            wanted = teacher(x)
        return 0.5 * F.cross_entropy(scores, y) + 0.5 * soft_loss(scores, wanted)

    test = (test_x, test_y)
    taught = train("teacher", teacher, loader, test, epochs, lambda scores, x, y: F.cross_entropy(scores, y))
    learnt = train("student", student, loader, test, epochs, soft_and_hard)
    return taught, learnt


if __name__ == "__main__":
    run(20)
