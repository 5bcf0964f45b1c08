"""A vision transformer learns the digits in mixed precision: products in BF16, weights in F32."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32
# Patches of 2x2 pixels.
PATCHES = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images):
        n = images.shape[0]
        patches = self.patches(images.reshape(n, 1, 8, 8)).flatten(2)
        class_token = self.class_token.expand(n, -1, -1)
        x = torch.cat([class_token, patches.transpose(1, 2)], 1) + self.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


def train(epochs):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    model = Vit(2).to(device)
    adamw = torch.optim.AdamW(model.parameters(), lr=2e-3)
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    x, test_x, y, test_y = train_test_split(pixels, labels, test_size=0.2, random_state=7)
    test_x, test_y = test_x.to(device), test_y.to(device)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    share = 0.0
    for epoch in range(epochs):
        for x, y in loader:
            with torch.autocast(device, torch.bfloat16):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
            adamw.zero_grad()
            loss.backward()
            adamw.step()
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            share = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"epoch {epoch:2}: {100 * share:.1f} % of the held-out digits")
    return share


if __name__ == "__main__":
    train(8)
