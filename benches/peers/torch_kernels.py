"""The cases of `cuda_kernels.rs` in PyTorch: `name eager compiled` in ms a line, medians of repeats between two events.

    python3 benches/peers/torch_kernels.py [PART OF A NAME ..]
"""

import statistics
import sys

import torch
import torch.nn.functional as F

REPEATS = 15


def time(step):
    def repeat(calls):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / calls

    once = min(repeat(3), repeat(3))
    calls = int(min(max(20 / once, 3), 1000))
    return statistics.median(repeat(calls) for _ in range(REPEATS))


def values(dtype, shapes, **options):
    torch.manual_seed(1)
    return [torch.randn(shape, device="cuda", dtype=dtype, **options) for shape in shapes]


def report(name, dtype, step, compiled):
    name = f"{name} {'f32' if dtype == torch.float32 else 'bf16'}"
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not words or any(word in name for word in words):
        print(f"{name} {time(step()):.4f} {time(compiled()):.4f}", flush=True)


def op(name, dtype, shapes, function):
    """`function` of values of these shapes."""

    def with_function(function):
        inputs = values(dtype, shapes)
        return lambda: function(*inputs)

    report(name, dtype, lambda: with_function(function), lambda: with_function(torch.compile(function)))


def forward_and_backward(name, dtype, shapes, function):
    """The same, and the gradients of all of them from one of its result."""

    def with_function(function):
        inputs = values(dtype, shapes, requires_grad=True)
        gradient = torch.ones_like(function(*inputs))
        return lambda: torch.autograd.grad(function(*inputs), inputs, gradient)

    report(name, dtype, lambda: with_function(function), lambda: with_function(torch.compile(function)))


def cross_entropy(x):
    return F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long, device=x.device))


def linear_cross_entropy(x, weight):
    return cross_entropy(F.linear(x, weight))


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[1:], weight, bias)


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def dropped_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)


def adamw():
    """A step for the parameters of GPT-2 small."""
    layer = [(768, 2304), (768, 768), (768, 3072), (3072, 768), (2304,), (3072,), *[(768,)] * 6]
    parameters = values(torch.float32, [(50304, 768), (1024, 768), *layer * 12], requires_grad=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.AdamW(parameters, fused=True, capturable=True).step


for dtype in (torch.float32, torch.bfloat16):
    square = [(8192, 8192)]
    op("sum", dtype, square, lambda x: x.sum())
    op("sum_rows", dtype, square, lambda x: x.sum(1))
    op("sum_columns", dtype, square, lambda x: x.sum(0))
    op("sum_bias_768", dtype, [(4096, 768)], lambda x: x.sum(0))
    op("sum_bias_3072", dtype, [(4096, 3072)], lambda x: x.sum(0))
    op("sum_bias_50304", dtype, [(4096, 50304)], lambda x: x.sum(0))
    op("var", dtype, square, lambda x: x.var())
    op("logsumexp_rows", dtype, square, lambda x: x.logsumexp(1))
    op("argmax_rows", dtype, square, lambda x: x.argmax(1))
    forward_and_backward("cross_entropy", dtype, [(4096, 50304)], cross_entropy)
    forward_and_backward("linear_cross_entropy", dtype, [(4096, 768), (50304, 768)], linear_cross_entropy)
    forward_and_backward("layer_norm_1024", dtype, [(8192, 1024), (1024,), (1024,)], layer_norm)
    forward_and_backward("layer_norm_768", dtype, [(8192, 768), (768,), (768,)], layer_norm)
    forward_and_backward("batch_norm", dtype, [(32, 64, 56, 56), (64,), (64,)], batch_norm)
    forward_and_backward("softmax", dtype, [(8192, 4096)], lambda x: F.softmax(x, 1))
    forward_and_backward("gelu_affine", dtype, [(8192, 8192), (8192,), (8192,)], lambda x, a, b: F.gelu(x * a + b))
    for name, heads in (("attention_1024", (4, 12, 1024, 64)), ("attention_4096", (2, 16, 4096, 64))):
        op(f"{name}_forward", dtype, [heads] * 3, attention)
        forward_and_backward(name, dtype, [heads] * 3, attention)
        forward_and_backward(f"{name}_dropout", dtype, [heads] * 3, dropped_attention)
report("adamw", torch.float32, adamw, adamw)
