"""Ten steps of each optimizer and forty rates of each schedule, by PyTorch, for models/tests/optimizers.rs.

    python3 tests/reference/optimizers.py > tests/data/optimizers.json

Options have the names of streamgrad's optimizer states. Everything is in double precision.
"""

import json
import re

import torch
from torch import optim
from torch.optim import lr_scheduler

STEPS = 10
RATES = 40


class Lion(optim.Optimizer):
    """Algorithm 2 of Chen et al., "Symbolic discovery of optimization algorithms" (2023)."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                mean = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(group["lr"] * torch.sign(beta1 * mean + (1 - beta1) * param.grad))
                mean.mul_(beta2).add_((1 - beta2) * param.grad)


KINDS = {
    "adagrad": optim.Adagrad,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "lion": Lion,
    "rmsprop": optim.RMSprop,
    "sgd": optim.SGD,
}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10}
SGD = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0}
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
RMSPROP = {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": 0}
LION = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}

OPTIMIZERS = [
    ("sgd", SGD),
    ("sgd", SGD | {"weight_decay": 0.2}),
    ("sgd", SGD | {"momentum": 0.9}),
    ("sgd", SGD | {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
    ("sgd", SGD | {"momentum": 0.9, "nesterov": 1, "weight_decay": 0.01}),
    ("adam", ADAM),
    ("adam", ADAM | {"beta1": 0.7, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.3}),
    ("adam", ADAM | {"beta1": 0.3, "beta2": 0.0, "eps": 0.1}),
    ("adamw", ADAM | {"weight_decay": 0.01}),
    ("adamw", ADAM | {"beta1": 0.7, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.3}),
    ("rmsprop", RMSPROP),
    ("rmsprop", RMSPROP | {"alpha": 0.4, "eps": 1e-3, "weight_decay": 0.1}),
    ("rmsprop", RMSPROP | {"momentum": 0.9}),
    ("rmsprop", RMSPROP | {"centered": 1}),
    ("rmsprop", RMSPROP | {"centered": 1, "alpha": 0.3, "momentum": 0.5, "weight_decay": 0.1}),
    ("adagrad", ADAGRAD),
    ("adagrad", ADAGRAD | {"lr_decay": 0.3, "weight_decay": 0.1, "eps": 1e-3}),
    ("lion", LION),
    ("lion", LION | {"beta1": 0.3, "beta2": 0.8, "weight_decay": 0.5}),
]

# Falls at first, and once more.
METRICS = [1.0 / (1 + min(step, 8) + (step > 30)) + 0.01 * (step % 3) for step in range(RATES)]

SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.3),
    "multi-step": lambda o: lr_scheduler.MultiStepLR(o, milestones=[3, 11, 11, 30], gamma=0.5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.93),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=15, eta_min=0.01),
    "warm-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=5, T_mult=2, eta_min=0.01),
    "equal-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=40, cycle_momentum=False),
    "linear": lambda o: lr_scheduler.LinearLR(o, start_factor=0.25, end_factor=1.0, total_iters=12),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.LinearLR(o, start_factor=0.1, end_factor=1.0, total_iters=8),
            lr_scheduler.CosineAnnealingLR(o, T_max=20),
            lr_scheduler.ExponentialLR(o, gamma=0.9),
        ],
        milestones=[8, 28],
    ),
}


def arguments(options):
    options = dict(options)
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    return {name: bool(value) if name in ("nesterov", "centered") else value for name, value in options.items()}


def steps(kind, options, start, gradients):
    param = torch.nn.Parameter(start.clone())
    optimizer = KINDS[kind]([param], **arguments(options))
    values = []
    for gradient in gradients:
        param.grad = gradient.clone()
        optimizer.step()
        values.append(param.detach().flatten().tolist())
    return values


def rates(make, base_lr):
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base_lr)
    schedule = make(optimizer)
    values = []
    for _ in range(RATES):
        values.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return values


def plateau_rates(base_lr, metrics):
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base_lr)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2, cooldown=3, min_lr=0.01)
    values = []
    for metric in metrics:
        schedule.step(metric)
        values.append(optimizer.param_groups[0]["lr"])
    return values


def main():
    torch.manual_seed(7)
    start = torch.randn(3, 4, dtype=torch.float64)
    gradients = torch.randn(STEPS, 3, 4, dtype=torch.float64)
    gradients[:, 0, 0] = 0.0  # a weight that no gradient reaches
    reference = {
        "torch": torch.__version__,
        "shape": list(start.shape),
        "start": start.flatten().tolist(),
        "gradients": [gradient.flatten().tolist() for gradient in gradients],
        "optimizers": [
            {"kind": kind, "options": options, "values": steps(kind, options, start, gradients)}
            for kind, options in OPTIMIZERS
        ],
        "base_lr": 0.2,
        "metrics": METRICS,
        "plateau": plateau_rates(0.2, METRICS),
        "schedules": {name: rates(make, 0.2) for name, make in SCHEDULES.items()},
    }
    # A line for each entry.
    text = json.dumps(reference, indent=1)
    print(re.sub(r"\[[^][]*\]", lambda numbers: " ".join(numbers.group().split()), text))


main()
