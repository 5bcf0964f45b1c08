"""A differentiable op of one's own: its value, its gradient, and the check that they fit."""

import math

import torch
from torch.autograd import gradcheck, gradgradcheck


class LogCosh(torch.autograd.Function):
    """`y = ln cosh x`, a smooth absolute value; `x' = g tanh x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        # |x| + ln((1 + e^(-2|x|)) / 2), where nothing overflows.
        size = x.abs()
        return size + (-2 * size).exp().log1p() - math.log(2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.tanh()


def main():
    x = torch.tensor([[-40.0, -1.5, -0.2], [0.3, 2.0, 800.0]], dtype=torch.float64, requires_grad=True)
    print("first derivatives", "fit" if gradcheck(LogCosh.apply, x) else "do not fit")
    print("second derivatives", "fit" if gradgradcheck(LogCosh.apply, x) else "do not fit")

    LogCosh.apply(x).sum().backward()
    print("slopes", [round(slope, 3) for slope in x.grad.flatten().tolist()])


if __name__ == "__main__":
    main()
