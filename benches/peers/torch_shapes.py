"""Ops of randomly drawn shapes, this engine's beside PyTorch's.

    python3 benches/peers/torch_shapes.py OURS --device cuda|cpu [--seed N] [--family F,..] [--cases A..B] [--threads N] [--table FILE]

OURS is the program of `benches/shapes.rs`. Each family has a distribution over ops, shapes, strides, types and options; case I of a
family depends on the seed, the family and I alone. The family `named` has 24 fixed cases instead, and is left out unless it is asked for. Both sides get the same inputs, return all values, which are compared with those
of F64, and are timed in turn in the same rounds. PyTorch's time is that of its best way: eager, CUDA graph, channels last, compiled.
Ours is that of the better of eager and captured. A ratio is PyTorch's time by ours: above 1 this engine is faster.

Appends a line of JSON per case to the table, and prints for each family the geometric mean, the worst decile and the worst case
of all lines with this seed and device.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F

from torch_large import graph_of

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "bool": torch.bool}
# A value is wrong if its error, relative to the largest value, is beyond this and beyond four times PyTorch's.
TOLERANCE = {"f32": 2e-6, "bf16": 8e-3}
ROUNDS = 5
BUDGET_MS = 10.0


# Drawing


def size(rng, low, high):
    """Log-uniform; two of three are multiples of a power of two, as people choose them."""
    n = math.exp(rng.uniform(math.log(low), math.log(high)))
    step = 1 << max(0, int(math.log2(n)) - 2) if rng.random() < 0.67 else 1
    return max(low, min(high, round(n / step) * step))


def shape(rng, rank, elements):
    """About as many elements, in axes of different lengths."""
    weights = [rng.random() + 0.1 for _ in range(rank)]
    total = math.log(elements) / sum(weights)
    return [size(rng, 1, max(1, round(math.exp(weight * total) * 1.2))) for weight in weights]


def elements(rng, most=26):
    return 2 ** rng.uniform(10, most)


def floating(rng):
    return rng.choice(["f32", "bf16"])


def leaf(shape, dtype, **more):
    return {"role": "leaf", "shape": shape, "dtype": dtype, **more}


def indices(shape, bound, hot=False):
    return {"role": "other", "shape": shape, "dtype": "i64", "bound": bound, "hot": hot}


def case(op, inputs, backward=False, **options):
    return {"op": op, "inputs": inputs, "backward": backward, "options": options}


def reductions(rng):
    op, dtype = rng.choice(["sum", "mean", "amax", "var", "logsumexp", "argmax"]), floating(rng)
    kind = rng.random()
    count = elements(rng)
    if kind < 0.12:
        dims = [round(count)]
    elif kind < 0.25:
        dims = [size(rng, 2, 64), max(1, round(count / 64))]
        rng.shuffle(dims)
    else:
        dims = shape(rng, rng.randint(2, 4), count)
    axes = sorted(rng.sample(range(len(dims)), rng.randint(1, len(dims))))
    if op == "argmax":
        # Equal values, which BF16 has many of, have several right answers.
        axes, dtype = axes[:1], "f32"
    if op == "var" and math.prod(dims[axis] for axis in axes) < 2:
        op = "mean"
    return case(op, [leaf(dims, dtype)], axes=axes)


WIDTHS = [8, 16, 64, 100, 128, 256, 384, 512, 768, 1000, 1024, 1600, 2048, 3072, 4096, 5120, 8192, 12288]


def norms(rng):
    op, dtype = rng.choice(["layer_norm", "layer_norm", "rms_norm", "group_norm", "batch_norm"]), floating(rng)
    backward = rng.random() < 0.7
    if op in ("layer_norm", "rms_norm"):
        width = rng.choice(WIDTHS) if rng.random() < 0.7 else size(rng, 8, 65536)
        dims = [size(rng, 1, max(2, 2**25 // width)), width]
        parameters = [leaf([width], dtype)] * (1 if op == "rms_norm" else 2)
        return case(op, [leaf(dims, dtype), *parameters], backward)
    channels, side = 32 * size(rng, 1, 16), rng.choice([7, 14, 16, 28, 32, 56, 64])
    batch = size(rng, 2, max(2, min(128, 2**25 // (channels * side * side))))
    # The parameters of a batch norm stay F32, as in mixed precision.
    own = "f32" if op == "batch_norm" else dtype
    options = {"groups": rng.choice([8, 32])} if op == "group_norm" else {}
    return case(op, [leaf([batch, channels, side, side], dtype), leaf([channels], own), leaf([channels], own)], backward, **options)


def softmaxes(rng):
    op, dtype, backward = rng.choice(["softmax", "softmax", "log_softmax", "cross_entropy"]), floating(rng), rng.random() < 0.5
    if op == "cross_entropy":
        classes = rng.choice([2, 10, 100, 1000, 32000, 50257, 50304, 128256])
        rows = size(rng, 1, min(65536, 2**26 // classes))
        return case(op, [leaf([rows, classes], dtype), indices([rows], classes)], backward)
    dims = shape(rng, rng.randint(2, 4), elements(rng, 25))
    axis = len(dims) - 1 if rng.random() < 0.6 else rng.randrange(len(dims))
    return case(op, [leaf(dims, dtype)], backward, axes=[axis])


def scans(rng):
    dims = [round(elements(rng, 24))] if rng.random() < 0.2 else shape(rng, rng.randint(2, 3), elements(rng, 24))
    return case("cumsum", [leaf(dims, floating(rng))], rng.random() < 0.3, axes=[rng.randrange(len(dims))])


def indexed(rng):
    op = rng.choice(["embedding", "embedding", "embedding_bag", "index_select", "index_add", "gather", "scatter_add"])
    dtype, hot = floating(rng), rng.random() < 0.4
    rows, width = size(rng, 16, 100_000), rng.choice([1, 8, 16, 64, 128, 256, 768, 1024])
    rows = min(rows, 2**26 // width)
    count = size(rng, 64, min(65536, 2**25 // width))
    if op == "embedding":
        return case(op, [leaf([rows, width], dtype), indices([count], rows, hot)], True)
    if op == "embedding_bag":
        bag = size(rng, 1, 64)
        return case(op, [leaf([rows, width], dtype), indices([max(1, count // bag), bag], rows, hot)], True)
    axis = 0 if rng.random() < 0.7 else 1
    dims = [rows, width] if axis == 0 else [width, rows]
    if op in ("gather", "scatter_add"):
        count = min(count, 2**22 // width)
    chosen = [count, width] if axis == 0 else [width, count]
    backward = rng.random() < 0.7
    if op == "index_select":
        return case(op, [leaf(dims, dtype), indices([count], rows, hot)], backward, axes=[axis])
    if op == "index_add":
        return case(op, [leaf(dims, dtype), leaf(chosen, dtype), indices([count], rows, hot)], backward, axes=[axis])
    if op == "gather":
        return case(op, [leaf(dims, dtype), indices(chosen, rows, hot)], backward, axes=[axis])
    return case(op, [leaf(dims, dtype), leaf(chosen, dtype), indices(chosen, rows, hot)], backward, axes=[axis])


def copies(rng):
    dtype = floating(rng)
    dims = shape(rng, rng.randint(2, 5), elements(rng, 25))
    if rng.random() < 0.3:
        axis, parts = rng.randrange(len(dims)), rng.randint(2, 4)
        pieces = [[*dims[:axis], size(rng, 1, max(1, dims[axis])), *dims[axis + 1 :]] for _ in range(parts)]
        return case("cat", [leaf(piece, dtype) for piece in pieces], axes=[axis])
    order = list(range(len(dims)))
    while order == sorted(order):
        rng.shuffle(order)
    return case("contiguous", [leaf(dims, dtype, permute=order)])


def chains(rng):
    dtype, backward = floating(rng), rng.random() < 0.4
    dims = shape(rng, rng.randint(1, 4), elements(rng, 25))
    names = ["add", "mul", "sub", "maximum", "relu", "silu", "gelu", "tanh", "sigmoid", "square", "scale"]
    functions = [rng.choice(names) for _ in range(rng.randint(1, 6))]
    operands = [leaf(dims, dtype)]
    for function in functions:
        if function in ("add", "mul", "sub", "maximum"):
            whole = rng.random() < 0.5
            operands.append(leaf([dim if whole or rng.random() < 0.5 else 1 for dim in dims], dtype))
    return case("chain", operands, backward, chain=functions)


def pooling(rng):
    op, dtype, backward = rng.choice(["max_pool2d", "avg_pool2d", "bilinear", "nearest"]), floating(rng), rng.random() < 0.6
    side = rng.choice([7, 14, 28, 32, 56, 64, 112, 128, 224])
    channels = size(rng, 1, 512)
    batch = size(rng, 1, max(1, min(64, 2**25 // (channels * side * side))))
    x = leaf([batch, channels, side, side], dtype)
    if op in ("bilinear", "nearest"):
        to = rng.choice([side * 2, side // 2 + 1, size(rng, 4, 2 * side)])
        return case(op, [x], backward, size=[to, to])
    kernel, stride = rng.choice([(2, 2), (3, 2), (3, 1), (5, 1), (7, 7)])
    return case(op, [x], backward, kernel=[kernel] * 2, stride=[stride] * 2, padding=[rng.choice([0, kernel // 2])] * 2)


def convolutions(rng):
    dtype, backward, bias = floating(rng), rng.random() < 0.6, rng.random() < 0.5
    transposed = rng.random() < 0.15
    while True:
        kernel, stride = rng.choice([1, 3, 3, 3, 5, 7]), rng.choice([1, 1, 1, 2, 2, 4])
        dilation = 2 if kernel == 3 and rng.random() < 0.15 else 1
        side = rng.choice([7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224])
        channels, filters = (rng.choice([3, 16, 32, 48, 64, 96, 100, 128, 256, 512, 1024]) for _ in range(2))
        batch, kind, groups = size(rng, 1, 64), rng.random(), 1
        if kind < 0.15:
            groups, filters = channels, channels
        elif kind < 0.25 and channels % 32 == 0 and filters % 32 == 0:
            groups = 32
        padding = dilation * (kernel // 2)
        flops = 2 * batch * channels * filters // groups * kernel**2 * (side // stride) ** 2
        if kernel * dilation <= side and stride <= kernel and flops < 2e11 and batch * max(channels, filters) * side * side < 2**26:
            break
    options = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [dilation] * 2, "groups": groups}
    inputs = [leaf([batch, channels, side, side], dtype)]
    if transposed and side <= 64:
        options["output_padding"] = [stride - 1 if stride > 1 else 0] * 2
        inputs.append(leaf([channels, filters // groups, kernel, kernel], dtype, scale=(channels * kernel) ** -0.5))
        return case("conv_transpose2d", inputs + [leaf([filters], dtype)] * bias, backward, **options)
    inputs.append(leaf([filters, channels // groups, kernel, kernel], dtype, scale=(channels // groups * kernel**2) ** -0.5))
    return case("conv2d", inputs + [leaf([filters], dtype)] * bias, backward, **options)


def products(rng):
    dtype, backward = floating(rng), rng.random() < 0.3
    while True:
        m, k, n = (size(rng, 1, 8192) for _ in range(3))
        batch = size(rng, 1, 256) if rng.random() < 0.3 else 1
        if 2 * batch * m * k * n < 3e11 and batch * max(m * k, k * n, m * n) < 2**26:
            break
    if batch > 1:
        return case("matmul", [leaf([batch, m, k], dtype), leaf([batch, k, n], dtype, scale=k**-0.5)], backward)
    if rng.random() < 0.5:
        return case("linear", [leaf([m, k], dtype), leaf([n, k], dtype, scale=k**-0.5), leaf([n], dtype)], backward)
    # An operand that is stored transposed, now and then.
    order = {"permute": [1, 0]} if rng.random() < 0.3 else {}
    right = [n, k] if order else [k, n]
    return case("matmul", [leaf([m, k], dtype), leaf(right, dtype, scale=k**-0.5, **order)], backward)


def attention(rng):
    dtype, backward = floating(rng), rng.random() < 0.6
    lengths = [16, 77, 128, 197, 256, 512, 777, 1000, 1024, 2048, 4096]
    while True:
        queries = rng.choice(lengths)
        keys = queries if rng.random() < 0.75 else rng.choice(lengths)
        if rng.random() < 0.1:
            queries, backward = 1, False
        batch, heads, width = size(rng, 1, 32), rng.choice([1, 2, 4, 6, 8, 12, 16, 32]), rng.choice([16, 32, 40, 48, 64, 64, 80, 96, 128, 256])
        if 4 * batch * heads * queries * keys * width < 2e11 and batch * heads * queries * keys < 2**28:
            break
    grouped = heads % 4 == 0 and rng.random() < 0.15
    own = heads // 4 if grouped else heads
    inputs = [leaf([batch, heads, queries, width], dtype), *[leaf([batch, own, keys, width], dtype)] * 2]
    kind = rng.random()
    if kind < 0.1:
        inputs.append({"role": "other", "shape": [queries, keys], "dtype": "bool"})
    elif kind < 0.2:
        inputs.append({"role": "other", "shape": [queries, keys], "dtype": dtype})
    causal = kind >= 0.55 and queries == keys
    return case("attention", inputs, backward, causal=causal, gqa=grouped)


def orders(rng):
    """Sorts and the largest elements, along rows mostly."""
    dtype, axis = floating(rng), -1 if rng.random() < 0.8 else 0
    rows = size(rng, 1, 4096) if rng.random() < 0.6 else 1
    dims = [rows, size(rng, 8, max(8, 2**22 // rows))]
    op = rng.choice(["sort", "topk"])
    most = min(dims[axis], 256)
    return case(op, [leaf(dims, dtype)], rng.random() < 0.3, axes=[axis], k=size(rng, 1, most))


def lengths(rng):
    """Norms of vectors, and what is divided by them."""
    dtype, op = floating(rng), rng.choice(["norm", "normalize", "cosine_similarity"])
    dims = shape(rng, 2, elements(rng, 24))
    return case(op, [leaf(dims, dtype)] * (2 if op == "cosine_similarity" else 1), rng.random() < 0.5, axes=[1])


def einsums(rng):
    equation, ranks = rng.choice(
        [("bhqd,bhkd->bhqk", ["bhqd", "bhkd"]), ("bhqk,bhkd->bqhd", ["bhqk", "bhkd"]), ("bij,bjk->bik", ["bij", "bjk"]),
         ("bsd,de,be->bs", ["bsd", "de", "be"]), ("bn,nm,bm->b", ["bn", "nm", "bm"])]
    )  # fmt: skip
    sizes = {letter: size(rng, 2, 12 if letter in "bh" else 256) for letter in "bhqkdijsenm"}
    inputs = [leaf([sizes[letter] for letter in rank], "f32", scale=0.2) for rank in ranks]
    return case("einsum", inputs, rng.random() < 0.5, equation=equation)


def recurrent(rng):
    """Sequences in, all outputs out; the parameters follow the input."""
    op, gates = rng.choice([("lstm", 4), ("lstm", 4), ("gru", 3)])
    layers, hidden, width = rng.choice([1, 2]), rng.choice([32, 64, 128, 256, 512]), size(rng, 8, 512)
    inputs = [leaf([size(rng, 8, 128), size(rng, 1, 64), width], "f32")]
    for layer in range(layers):
        inputs += [leaf([gates * hidden, width if layer == 0 else hidden], "f32", scale=hidden**-0.5)]
        inputs += [leaf([gates * hidden, hidden], "f32", scale=hidden**-0.5)]
        inputs += [leaf([gates * hidden], "f32", scale=0.1)] * 2
    return case(op, inputs, rng.random() < 0.7, layers=layers, hidden=hidden)


def parameters(layers, width, hidden, gates):
    """Weights and biases of a recurrent layer."""
    both = [[[gates * hidden, width if layer == 0 else hidden], [gates * hidden, hidden]] for layer in range(layers)]
    return [leaf(shape, "f32", scale=hidden**-0.5) for shapes in both for shape in [*shapes, [gates * hidden], [gates * hidden]]]


def named():
    """What people time first; case I is the same for all seeds."""
    heads, weights = [4, 8, 256, 64], [4, 8, 256, 256]
    scores = [[leaf(shape, "f32", scale=0.2) for shape in shapes] for shapes in ([heads, heads], [weights, heads])]
    for backward in (False, True):
        for op, gates, layers, dims, hidden in [("lstm", 4, 2, [64, 32, 256], 256), ("gru", 3, 2, [64, 32, 256], 256), ("lstm", 4, 1, [128, 1, 64], 64)]:
            yield case(op, [leaf(dims, "f32"), *parameters(layers, dims[2], hidden, gates)], backward, layers=layers, hidden=hidden)
        for dims in [[10**6], [1000, 1000]]:
            yield case("sort", [leaf(dims, "f32")], backward, axes=[-1])
            yield case("topk", [leaf(dims, "f32")], backward, axes=[-1], k=100)
            yield case("norm", [leaf(dims, "f32")], backward, axes=[-1])
        yield case("topk", [leaf([28, 51158], "f32")], backward, axes=[-1], k=40)
        yield case("einsum", scores[0], backward, equation="bhqd,bhkd->bhqk")
        yield case("einsum", scores[1], backward, equation="bhqk,bhkd->bqhd")


FAMILIES = {
    function.__name__: function
    for function in (reductions, norms, softmaxes, scans, indexed, copies, chains, pooling, convolutions, products, attention, orders, lengths, einsums, recurrent)
}
COMPILED = {"reductions", "norms", "softmaxes", "scans", "indexed", "chains"}
CHANNELS_LAST = {"conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d", "bilinear", "nearest", "batch_norm", "group_norm"}


def draw(seed, family, index):
    if family == "named":
        return list(named())[index]
    return FAMILIES[family](random.Random(f"{seed}/{family}/{index}"))


# PyTorch's side


def tensors(drawn, device, generator):
    """The values of the inputs, before their axes are permuted."""
    made = []
    for entry in drawn["inputs"]:
        dims, dtype = entry["shape"], DTYPES[entry["dtype"]]
        if "bound" in entry:
            values = torch.rand(dims, generator=generator, device=device, dtype=torch.float64)
            values = ((values**8 if entry["hot"] else values) * entry["bound"]).long().clamp(max=entry["bound"] - 1)
        elif dtype == torch.bool:
            values = torch.rand(dims, generator=generator, device=device) < 0.8
            values[..., 0] = True
        else:
            values = (torch.randn(dims, generator=generator, device=device) * entry.get("scale", 1.0)).to(dtype)
        made.append(values)
    return made


def permuted(drawn, values):
    return [value.permute(entry["permute"]) if "permute" in entry else value for entry, value in zip(drawn["inputs"], values)]


def forward(drawn, x):
    """The op's result."""
    o, op = drawn["options"], drawn["op"]
    axes = o.get("axes", [0])
    if op in ("sum", "mean", "amax", "var", "logsumexp"):
        return getattr(torch, op)(x[0], dim=axes)
    if op == "argmax":
        return torch.argmax(x[0], dim=axes[0])
    if op in ("cumsum", "softmax", "log_softmax"):
        return getattr(torch, op)(x[0], dim=axes[0])
    if op == "cross_entropy":
        return F.cross_entropy(x[0], x[1])
    if op == "layer_norm":
        return F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2])
    if op == "rms_norm":
        return F.rms_norm(x[0], x[0].shape[-1:], x[1], 1e-5)
    if op == "group_norm":
        return F.group_norm(x[0], o["groups"], x[1], x[2])
    if op == "batch_norm":
        return F.batch_norm(x[0], None, None, x[1], x[2], training=True)
    if op == "embedding":
        return F.embedding(x[1], x[0])
    if op == "embedding_bag":
        return F.embedding_bag(x[1], x[0], mode="sum")
    if op == "index_select":
        return torch.index_select(x[0], axes[0], x[1])
    if op == "index_add":
        return torch.index_add(x[0], axes[0], x[2], x[1])
    if op == "gather":
        return torch.gather(x[0], axes[0], x[1])
    if op == "scatter_add":
        return torch.scatter_add(x[0], axes[0], x[2], x[1])
    if op == "conv2d":
        return F.conv2d(x[0], x[1], x[2] if len(x) > 2 else None, o["stride"], o["padding"], o["dilation"], o["groups"])
    if op == "conv_transpose2d":
        bias = x[2] if len(x) > 2 else None
        return F.conv_transpose2d(x[0], x[1], bias, o["stride"], o["padding"], o["output_padding"], o["groups"], o["dilation"])
    if op == "max_pool2d":
        return F.max_pool2d(x[0], o["kernel"], o["stride"], o["padding"])
    if op == "avg_pool2d":
        return F.avg_pool2d(x[0], o["kernel"], o["stride"], o["padding"])
    if op == "bilinear":
        return F.interpolate(x[0], size=o["size"], mode="bilinear")
    if op == "nearest":
        return F.interpolate(x[0], size=o["size"], mode="nearest")
    if op == "matmul":
        return x[0] @ x[1]
    if op == "linear":
        return F.linear(x[0], x[1], x[2])
    if op == "attention":
        mask = x[3] if len(x) > 3 else None
        return F.scaled_dot_product_attention(x[0], x[1], x[2], mask, is_causal=o["causal"], enable_gqa=o["gqa"])
    if op == "contiguous":
        return x[0].contiguous()
    if op == "sort":
        return torch.sort(x[0], dim=axes[0], stable=True).values
    if op == "topk":
        return torch.topk(x[0], o["k"], dim=axes[0]).values
    if op == "norm":
        return torch.linalg.vector_norm(x[0], dim=axes[0])
    if op == "normalize":
        return F.normalize(x[0], dim=axes[0])
    if op == "cosine_similarity":
        return F.cosine_similarity(x[0], x[1], dim=axes[0])
    if op == "einsum":
        return torch.einsum(o["equation"], *x)
    if op in ("lstm", "gru"):
        state = torch.zeros(o["layers"], x[0].shape[1], o["hidden"], dtype=x[0].dtype, device=x[0].device)
        state = (state, state) if op == "lstm" else state
        return getattr(torch, op)(x[0], state, x[1:], True, o["layers"], 0.0, True, False, False)[0]
    if op == "cat":
        return torch.cat(x, axes[0])
    return chain(o["chain"], x)


def chain(functions, x):
    value, others = x[0], iter(x[1:])
    binary = {"add": torch.add, "mul": torch.mul, "sub": torch.sub, "maximum": torch.maximum}
    unary = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "square": torch.square}
    for function in functions:
        if function in binary:
            value = binary[function](value, next(others))
        else:
            value = value * 0.5 if function == "scale" else unary[function](value)
    return value


def prepared(drawn, values, gradient, dtype=None, channels_last=False, function=None):
    """A function of no arguments that makes all values: the result and, if they are wanted, the gradients of the leaves. `dtype`
    replaces the types of what is not an index, and `function` the op."""
    function = function or (lambda *x: forward(drawn, x))
    x = []
    for entry, value in zip(drawn["inputs"], values):
        value = value.to(dtype) if dtype and value.is_floating_point() else value.clone()
        if channels_last and value.dim() == 4:
            value = value.to(memory_format=torch.channels_last)
        x.append(value.requires_grad_(drawn["backward"] and entry["role"] == "leaf"))
    if gradient is not None and dtype:
        gradient = gradient.to(dtype)
    if channels_last and gradient is not None and gradient.dim() == 4:
        gradient = gradient.to(memory_format=torch.channels_last)
    leaves = [value for value in x if value.requires_grad]

    def run():
        result = function(*x)
        return [result] if gradient is None else [result, *torch.autograd.grad(result, leaves, gradient)]

    return run


def compiled(drawn, values, gradient):
    # Each case is a function of its own to the compiler.
    torch._dynamo.reset()
    return prepared(drawn, values, gradient, function=torch.compile(lambda *x: forward(drawn, x), dynamic=False))


def inputs_of(seed, family, index, device):
    """A case with the values of its inputs and the gradient of its result."""
    drawn = draw(seed, family, index)
    generator = torch.Generator(device).manual_seed(index)
    values = permuted(drawn, tensors(drawn, device, generator))
    gradient = None
    if drawn["backward"]:
        with torch.no_grad():
            result = forward(drawn, values)
        gradient = torch.randn(result.shape, generator=generator, device=device).to(result.dtype)
    return drawn, values, gradient


def compile_ahead(seed, family, index, device):
    """Fills the compiler's cache."""
    torch.set_num_threads(1)
    try:
        compiled(*inputs_of(seed, family, index, device))()
    except Exception as error:
        return f"{family} {index}: not compiled: {error}"
    return None


# Both sides


class Ours:
    """The process of this engine's side."""

    def __init__(self, program, device, threads):
        command = [program, device, *([str(threads)] if device == "cpu" else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args[0]} ended at {json.dumps(request)[:400]}")
        return json.loads(answer)


def write(folder, drawn, values, gradient):
    """The inputs as files; the request for them."""
    entries = list(drawn["inputs"])
    if gradient is not None:
        entries.append({"role": "gradient", "shape": list(gradient.shape), "dtype": "bf16" if gradient.dtype == torch.bfloat16 else "f32"})
        values = [*values, gradient]
    described = []
    for index, (entry, value) in enumerate(zip(entries, values)):
        path, order = f"{folder}/in-{index}", entry.get("permute")
        stored = value.permute([order.index(axis) for axis in range(len(order))]) if order else value
        stored = stored.float() if stored.is_floating_point() else stored
        stored.contiguous().cpu().numpy().tofile(path)
        role = "constant" if entry["role"] == "leaf" and not drawn["backward"] else entry["role"]
        described.append({"path": path, "role": role, "shape": entry["shape"], "dtype": entry["dtype"], "permute": order})
    return {"op": drawn["op"], "inputs": described, "options": drawn["options"]}


def error_of(value, exact):
    """The largest error, relative to the largest value."""
    if value.shape != exact.shape:
        return math.inf
    if exact.numel() == 0:
        return 0.0
    if not exact.is_floating_point():
        return 0.0 if torch.equal(value, exact) else math.inf
    scale = exact.abs().max().item() or 1.0
    error = (value.double() - exact).abs().max().item() / scale
    return error if error == error else math.inf


def burst(run, device):
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def of(calls):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize()
        return (time.perf_counter() - start) * 1e3 / calls

    once = min(of(2), of(2))
    return of(int(min(max(math.ceil(BUDGET_MS / once), 3), 2000)))


def ways(drawn, values, gradient, device, family):
    """PyTorch's ways to run a case, by name."""
    eager = {"eager": prepared(drawn, values, gradient)}
    if drawn["op"] in CHANNELS_LAST:
        eager["channels last"] = prepared(drawn, values, gradient, channels_last=True)
    if family in COMPILED:
        eager["compiled"] = compiled(drawn, values, gradient)
    found = {}
    for name, run in eager.items():
        try:
            run()
            found[name] = run
            if device == "cuda":
                found[f"{name}, graph"] = graph_of(run)
        except Exception as error:
            print(f"  PyTorch, {name}: {type(error).__name__}: {str(error)[:120]}", flush=True)
    return found


def measure(ours, folder, seed, family, index, device):
    drawn, values, gradient = inputs_of(seed, family, index, device)
    line = {"family": family, "case": index, "seed": seed, "op": drawn["op"], "inputs": [f"{e['dtype']}{e['shape']}" + (f" in order {e['permute']}" if "permute" in e else "") for e in drawn["inputs"]],
            "options": drawn["options"], "backward": drawn["backward"]}  # fmt: skip
    answer = ours.ask(case=write(folder, drawn, values, gradient))
    if "error" in answer:
        return {**line, "failed": answer["error"]}
    exact = prepared(drawn, values, gradient, dtype=torch.float64)()
    theirs = prepared(drawn, values, gradient)()
    own = []
    for (path, dims), reference in zip(answer["outputs"], exact):
        kind = torch.int64 if reference.dtype == torch.int64 else torch.float32
        own.append(torch.from_file(path, size=math.prod(dims), dtype=kind).reshape(dims).to(device))
    line["error"] = max(error_of(*pair) for pair in zip(own, exact)) if len(own) == len(exact) else math.inf
    line["torch_error"] = max(error_of(*pair) for pair in zip(theirs, exact))
    dtype = drawn["inputs"][0]["dtype"]
    line["wrong"] = line["error"] > max(TOLERANCE[dtype], 4 * line["torch_error"])
    del exact, theirs, own
    runs = ways(drawn, values, gradient, device, family)
    taken = {}
    for _ in range(ROUNDS):
        for name, ms in ours.ask(time=BUDGET_MS).items():
            taken.setdefault(f"ours, {name}", []).append(ms)
        for name, run in runs.items():
            taken.setdefault(name, []).append(burst(run, device))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    own = {name: ms for name, ms in medians.items() if name.startswith("ours")}
    peer = {name: ms for name, ms in medians.items() if not name.startswith("ours")}
    best = min(peer, key=peer.get)
    return {**line, "ours": min(own.values()), "torch": peer[best], "way": best, "ratio": peer[best] / min(own.values()), "ms": medians}


def described(line):
    options = " ".join(f"{key}={value}" for key, value in line["options"].items())
    return f"{line['op']}{' and gradients' if line['backward'] else ''} {' '.join(line['inputs'])} {options}"


def summary(lines):
    for family in [*FAMILIES, "named"]:
        found = [line for line in lines if line["family"] == family]
        timed = sorted((line for line in found if "ratio" in line), key=lambda line: line["ratio"])
        if timed:
            mean = math.exp(statistics.fmean(math.log(line["ratio"]) for line in timed))
            worst, wrong = timed[0], sum(line["wrong"] for line in timed)
            print(f"{family:13} {len(timed):3} cases  mean {mean:5.2f}  worst decile {timed[len(timed) // 10]['ratio']:5.2f}  "
                  f"worst {worst['ratio']:6.3f} (case {worst['case']}: {described(worst)[:110]})  wrong {wrong}")  # fmt: skip
        for line in found:
            if "failed" in line:
                print(f"{family} {line['case']} failed: {described(line)[:120]}: {line['failed'][:200]}")


def card(device, threads):
    if device == "cpu":
        return f"CPU, {threads} threads"
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return f"{torch.cuda.get_device_name()}, driver {driver.stdout.strip()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ours")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", default=",".join(FAMILIES))
    parser.add_argument("--cases", default="0..40")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", default="shapes.jsonl")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    first, last = map(int, options.cases.split(".."))
    chosen = [(family, index) for family in options.family.split(",") for index in range(first, last)]
    compiling = [(options.seed, family, index, options.device) for family, index in chosen if family in COMPILED]
    if compiling:
        workers = max(1, min(12, (os.cpu_count() or 1) - 1, len(compiling)))
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            for failure in pool.map(compile_ahead, *zip(*compiling)):
                if failure:
                    print(failure[:200], flush=True)
    on, folder = card(options.device, options.threads), tempfile.mkdtemp(prefix="shapes-", dir="/dev/shm")
    ours = Ours(options.ours, options.device, options.threads)
    try:
        with open(options.table, "a") as table:
            for family, index in chosen:
                line = {"on": on, **measure(ours, folder, options.seed, family, index, options.device)}
                print(json.dumps(line), file=table, flush=True)
                said = line.get("failed") or f"{line['ratio']:6.2f}  {line['ours']:.4f} ms, {line['way']} {line['torch']:.4f}"
                said += f"  WRONG {line['error']:.1e}, {line['torch_error']:.1e}" if line.get("wrong") else ""
                print(f"{family:13} {index:3}  {said}  {described(line)[:150]}", flush=True)
    finally:
        shutil.rmtree(folder)
    lines = [json.loads(line) for line in Path(options.table).read_text().splitlines()]
    summary([line for line in lines if line["seed"] == options.seed and line["on"] == on])


if __name__ == "__main__":
    main()
