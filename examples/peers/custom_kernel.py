"""A kernel of one's own, with a body for a CPU and one in CUDA C, its gradient, and the check that they fit."""

import torch
from torch.utils.cpp_extension import load_inline

CPU = r"""
torch::Tensor power_relu(torch::Tensor x, double power) {
    auto y = torch::empty_like(x);
    const double* from = x.data_ptr<double>();
    double* to = y.data_ptr<double>();
    for (int64_t i = 0; i < x.numel(); i++) {
        to[i] = from[i] > 0 ? std::pow(from[i], power) : 0;
    }
    return y;
}

torch::Tensor power_relu_grad(torch::Tensor x, torch::Tensor g, double power) {
    auto dx = torch::empty_like(x);
    const double *from = x.data_ptr<double>(), *slope = g.data_ptr<double>();
    double* to = dx.data_ptr<double>();
    for (int64_t i = 0; i < x.numel(); i++) {
        to[i] = from[i] > 0 ? slope[i] * power * std::pow(from[i], power - 1) : 0;
    }
    return dx;
}
"""

CUDA = r"""
#include <c10/cuda/CUDAStream.h>

constexpr int THREADS = 256;

__global__ void power_relu_kernel(double* y, const double* x, int64_t n, double power) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] > 0 ? pow(x[i], power) : 0;
    }
}

__global__ void power_relu_grad_kernel(double* dx, const double* x, const double* g, int64_t n, double power) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        dx[i] = x[i] > 0 ? g[i] * power * pow(x[i], power - 1) : 0;
    }
}

torch::Tensor power_relu_cuda(torch::Tensor x, double power) {
    auto y = torch::empty_like(x);
    int64_t n = x.numel();
    power_relu_kernel<<<(n + THREADS - 1) / THREADS, THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        y.data_ptr<double>(), x.data_ptr<double>(), n, power);
    return y;
}

torch::Tensor power_relu_grad_cuda(torch::Tensor x, torch::Tensor g, double power) {
    auto dx = torch::empty_like(x);
    int64_t n = x.numel();
    power_relu_grad_kernel<<<(n + THREADS - 1) / THREADS, THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        dx.data_ptr<double>(), x.data_ptr<double>(), g.data_ptr<double>(), n, power);
    return dx;
}
"""

CUDA_NAMES = """
torch::Tensor power_relu_cuda(torch::Tensor x, double power);
torch::Tensor power_relu_grad_cuda(torch::Tensor x, torch::Tensor g, double power);
"""

cpu = load_inline("power_relu_cpu", CPU, functions=["power_relu", "power_relu_grad"])
if torch.cuda.is_available():
    cuda = load_inline(
        "power_relu_cuda", CUDA_NAMES, CUDA, functions=["power_relu_cuda", "power_relu_grad_cuda"]
    )


class PowerRelu(torch.autograd.Function):
    """`y = max(x, 0)^power`; `x' = g power max(x, 0)^(power - 1)`."""

    @staticmethod
    def forward(ctx, x, power):
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.power = power
        return cuda.power_relu_cuda(x, power) if x.is_cuda else cpu.power_relu(x, power)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.contiguous()
        if x.is_cuda:
            return cuda.power_relu_grad_cuda(x, g, ctx.power), None
        return cpu.power_relu_grad(x, g, ctx.power), None


def check(device):
    x = torch.tensor([[-2.0, 0.5], [1.0, 3.0]], dtype=torch.float64, device=device, requires_grad=True)
    fits = torch.autograd.gradcheck(lambda x: PowerRelu.apply(x, 2.5), x)
    print(f"{device}: derivatives {'fit' if fits else 'do not fit'}")
    # On a view that is not contiguous.
    y = PowerRelu.apply(x.detach().t(), 2.0)
    assert y.flatten().tolist() == [0.0, 1.0, 0.25, 9.0]


def main():
    check("cpu")
    if torch.cuda.is_available():
        check("cuda")


if __name__ == "__main__":
    main()
