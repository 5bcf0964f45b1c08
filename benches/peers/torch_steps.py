"""The same cases as `ops.rs` and `train.rs` in PyTorch, alternately with this engine's.

    python3 benches/peers/torch_steps.py        # needs torch and numpy; builds and runs `cargo bench`

Each round runs one engine case and its PyTorch case, so that both see the same machine. Prints medians and ratios.
"""

import json
import statistics
import subprocess
import sys
import time

import torch

from torch_models import Gpt, lenet, mlp

ROUNDS = 5


def engine(bench, case):
    command = ["cargo", "bench", "--quiet", "--bench", bench, "--", "--json", case]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return next(row["median_ns"] for row in rows if row["name"] == case)


def timed(work, operations=1, seconds=0.3):
    work()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        spent = time.perf_counter() - start
        if spent > seconds:
            return spent / (calls * operations) * 1e9
        calls *= 2


def mlp_step(batch, threads):
    torch.manual_seed(1)
    return step_of(mlp(784, 256, 256, 10), batch, threads)


def lenet_step(threads):
    torch.manual_seed(1)
    return step_of(lenet(), 32, threads)


def step_of(model, batch, threads):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(batch, 784), torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    def run():
        torch.set_num_threads(threads)
        return timed(step)

    return run


def gpt_step(threads):
    torch.manual_seed(1)
    model = Gpt(vocabulary=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens, targets = torch.randint(0, 64, (8, 64)), torch.randint(0, 64, (8, 64))

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(tokens).view(-1, 64), targets.view(-1)).backward()
        optimizer.step()

    def run():
        torch.set_num_threads(threads)
        return timed(step)

    return run


def add_chain():
    leaf, one = torch.ones(1, requires_grad=True), torch.ones(1)

    def chain():
        y = leaf
        for _ in range(1000):
            y = y + one
        y.backward()

    def run():
        torch.set_num_threads(1)
        return timed(chain, 1000)

    return run


def add_recorded():
    leaf, one = torch.ones(1, requires_grad=True), torch.ones(1)
    return lambda: timed(lambda: leaf + one)


def add_plain():
    one = torch.ones(1)
    return lambda: timed(lambda: one + one)


CASES = [
    ("ops", "add, tensors", add_plain()),
    ("ops", "add, recorded", add_recorded()),
    ("ops", "add, forward and backward, chain of 1000", add_chain()),
    ("train", "mlp batch 32, 1 thread", mlp_step(32, 1)),
    ("train", "mlp batch 32, 2 threads", mlp_step(32, 2)),
    ("train", "mlp batch 256, 1 thread", mlp_step(256, 1)),
    ("train", "mlp batch 256, 2 threads", mlp_step(256, 2)),
    ("train", "lenet batch 32, 1 thread", lenet_step(1)),
    ("train", "lenet batch 32, 2 threads", lenet_step(2)),
    ("train", "gpt block, 1 thread", gpt_step(1)),
    ("train", "gpt block, 2 threads", gpt_step(2)),
]


def main():
    print(f"torch {torch.__version__}, python {sys.version.split()[0]}, {ROUNDS} rounds, medians")
    print(f"{'':44} {'engine us':>12} {'torch us':>12} {'torch/engine':>14}")
    for bench, name, peer in CASES:
        pairs = [(engine(bench, name), peer()) for _ in range(ROUNDS)]
        ours = statistics.median(pair[0] for pair in pairs)
        theirs = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        print(f"{name:44} {ours / 1e3:12.3f} {theirs / 1e3:12.3f} {ratio:14.2f}")


if __name__ == "__main__":
    main()
