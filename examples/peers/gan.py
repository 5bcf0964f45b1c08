"""A generative adversarial network learns to draw points near a circle."""

import math
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 128
NOISE = 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    ).to(DEVICE)


def circle():
    """Points `[BATCH, 2]` at a distance of about 1 from the origin."""
    angle = math.tau * torch.rand(BATCH, device=DEVICE)
    points = torch.stack([angle.cos(), angle.sin()], 1)
    return points + 0.05 * torch.randn_like(points)


def noise():
    return torch.randn(BATCH, NOISE, device=DEVICE)


def loss(scores, label):
    """The loss of scores of which all should be `label`."""
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


def train(steps):
    torch.manual_seed(7)
    generator, critic = network(NOISE, 64, 2), network(2, 64, 1)
    generator_adam = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    critic_adam = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for step in range(steps):
        fake = generator(noise())
        critic_loss = loss(critic(circle()), 1.0) + loss(critic(fake.detach()), 0.0)
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()

        generator_loss = loss(critic(fake), 1.0)
        generator_adam.zero_grad()
        generator_loss.backward()
        generator_adam.step()
        if step % 200 == 0:
            print(f"step {step:4}  critic {critic_loss.item():.3f}  generator {generator_loss.item():.3f}")
    with torch.no_grad():
        distances = generator(noise()).norm(dim=1)
    return distances.mean().item(), distances.std().item()


def main():
    mean, std = train(2000)
    print(f"distances {mean:.3f} ± {std:.3f}")


if __name__ == "__main__":
    main()
