"""A physics-informed network solves `u'' + 2 d u' + w² u = 0`, a damped oscillator, from its equation alone."""

import math
import torch
from torch import nn

DAMPING = 0.5
FREQUENCY = 3.0


def network():
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def exact(t):
    """The solution from rest at 1."""
    own = math.sqrt(FREQUENCY**2 - DAMPING**2)
    phase = own * t
    return (-DAMPING * t).exp() * (phase.cos() + DAMPING / own * phase.sin())


def grad_of(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def train(steps):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    u = network().to(device)
    adam = torch.optim.Adam(u.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=1e-5)
    start = torch.zeros(1, 1, device=device, requires_grad=True)
    times = torch.linspace(0, 3, 64, device=device).unsqueeze(1).requires_grad_()
    for step in range(steps):
        at_start = u(start)
        slope_at_start = grad_of(at_start, start)
        value = u(times)
        slope = grad_of(value, times)
        curvature = grad_of(slope, times)
        residual = curvature + 2 * DAMPING * slope + FREQUENCY**2 * value
        boundary = ((at_start - 1).square() + slope_at_start.square()).sum()
        loss = boundary + residual.square().mean() / 10
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step:4}  loss {loss.item():.2e}")
    with torch.no_grad():
        return (u(times) - exact(times)).abs().max().item()


def main():
    error = train(2000)
    print(f"largest error {error:.4f}")


if __name__ == "__main__":
    main()
