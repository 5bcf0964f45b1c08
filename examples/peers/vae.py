"""A variational autoencoder learns the digits, and draws new ones."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

LATENT = 8


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 64))

    def loss(self, images):
        """The negative evidence lower bound of images `[n, 64]`, per image."""
        mean, log_var = self.encoder(images).chunk(2, 1)
        latent = mean + (log_var / 2).exp() * torch.randn_like(mean)
        rebuilt = F.binary_cross_entropy_with_logits(self.decoder(latent), images, reduction="sum")
        divergence = (mean.square() + log_var.exp() - log_var - 1).sum() / 2
        return (rebuilt + divergence) / images.shape[0]

    @torch.no_grad()
    def sample(self, n, device):
        """Draws new images `[n, 64]`."""
        return self.decoder(torch.randn(n, LATENT, device=device)).sigmoid()


def train(epochs):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    model = Vae().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    loader = DataLoader(images, batch_size=64, shuffle=True)
    last = float("inf")
    for epoch in range(epochs):
        for batch in loader:
            loss = model.loss(batch.to(device))
            adam.zero_grad()
            loss.backward()
            adam.step()
            last = loss.item()
        print(f"epoch {epoch:2}  loss {last:.2f}")
    for row in model.sample(1, device).reshape(8, 8).tolist():
        print("".join("#" if p > 0.5 else "." for p in row))
    return last


if __name__ == "__main__":
    train(20)
