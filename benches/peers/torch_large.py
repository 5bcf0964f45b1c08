"""The steps of `benches/models.rs` in PyTorch on a GPU: eager, as a CUDA graph, compiled.

    python3 benches/peers/torch_large.py [--precision f32|tf32|bf16] [--no-compile] [CASE]...

Prints the median milliseconds of a step that ends when the device has done it, and the peak of allocated memory.
"""

import argparse
import contextlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from torch_models import GptBlock, lenet, mlp


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50304, context=1024, width=768, heads=12, blocks=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h, self.ln_f = nn.Sequential(*(GptBlock(width, heads) for _ in range(blocks))), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.ln_f(self.h(self.wte(tokens) + self.wpe.weight)))


def gpt2():
    tokens, targets = torch.randint(50304, (2, 4, 1024), device="cuda")
    return Gpt2(), lambda net: functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten()), "adamw"


def wide():
    x = torch.randn(1024, 4096, device="cuda")
    return mlp(*[4096] * 5), lambda net: net(x).square().mean(), "sgd"


def lenet_512():
    x, labels = torch.randn(512, 784, device="cuda"), torch.randint(10, (512,), device="cuda")
    return lenet(), lambda net: functional.cross_entropy(net(x), labels), "sgd"


def convolutions():
    layers = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(4)]
    x = torch.randn(32, 64, 56, 56, device="cuda").contiguous(memory_format=torch.channels_last)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last), lambda net: net(x).mean(), "sgd"


CASES = {"gpt2": gpt2, "wide mlp": wide, "lenet 512": lenet_512, "convolutions": convolutions}


def step_of(case, precision, compiled):
    net, loss, optimizer = CASES[case]()
    net = net.cuda()
    called = torch.compile(net) if compiled else net
    make = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True, capturable=True),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, fused=True)}[optimizer]
    optimizer = make(net.parameters())

    def step():
        cast = torch.autocast("cuda", torch.bfloat16, cache_enabled=True) if precision == "bf16" else contextlib.nullcontext()
        with cast:
            value = loss(called)
        value.backward()
        optimizer.step()
        net.zero_grad(set_to_none=True)

    return step


def graph_of(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def median_ms(step, seconds=2.0):
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--precision", choices=["f32", "tf32", "bf16"], default="f32")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    torch.backends.cudnn.deterministic = True
    for case in options.cases or CASES:
        for compiled in [False] if options.no_compile else [False, True]:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            step = step_of(case, options.precision, compiled)
            eager = median_ms(step)
            peak = torch.cuda.max_memory_allocated() / 2**20
            graph = median_ms(graph_of(step))
            how = "compiled" if compiled else "eager"
            print(f"{case:14} {options.precision:5} {how:9} {eager:9.3f} ms, as a graph {graph:9.3f} ms, peak {peak:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
