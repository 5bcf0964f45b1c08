"""Training steps of `models/src/workloads` in PyTorch on a GPU: eager, captured as CUDA graphs, compiled.

    python3 benches/peers/torch_graphs.py [--workload NAME]... [--steps N] [--rounds R] [--rows N] [--json FILE] [--no-compile]

A step is the forward and backward pass of two batches on shared weights, the sum of their gradients, and the optimizer. Each
is timed until the device has done it. Every round goes over all variants, so that drift meets them alike. Inputs stay where
they are, and losses stay on the device. Products and convolutions are of F32, without TF32. Without a GPU there is the eager
variant only.
"""

import argparse
import contextlib
import copy
import gc
import json
import math
import signal
import statistics
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, NamedTuple

import torch
from torch.nn import functional

from torch_models import Dlrm, Gpt, lenet, mlp

LANES = 2
# Steps before a capture, and before the first of any other variant that counts.
WARMUP = 11
# Steps after which the losses of all variants are compared, and how far they may be apart.
CHECKED, TOLERANCE = 20, 1e-2
# Steps at the begin of a round that are not timed.
SETTLE = 10

VOCABULARY, CONTEXT = 26, 64
DENSE, CATEGORIES, MOST = 4, [1000, 500, 200, 100, 30, 10], 4


class Workload(NamedTuple):
    rows: int
    model: Callable  # () -> module
    batch: Callable  # rows -> tensors
    loss: Callable  # module, tensors -> scalar
    optimizer: Callable  # parameters, whether it is captured -> optimizer


def rows_and_labels(width):
    return lambda rows: [torch.randn(rows, width), torch.randint(10, (rows,))]


def windows(rows):
    return [torch.randint(VOCABULARY, (rows, CONTEXT)) for _ in range(2)]


def clicks(rows):
    """Clicks, log-normal features, and bags of up to `MOST` values of which number k is as frequent as 1 / k."""
    batch = [torch.randint(2, (rows,)).float(), torch.randn(rows, DENSE).exp()]
    for values in CATEGORIES:
        counts = torch.randint(MOST + 1, (rows,))
        chances = 1 / torch.arange(1.0, values + 1)
        batch.append(torch.multinomial(chances, int(counts.sum()), replacement=True))
        batch.append(counts.cumsum(0) - counts)
    return batch


def class_loss(net, inputs, labels):
    return functional.cross_entropy(net(inputs), labels)


def token_loss(net, tokens, targets):
    return functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())


def click_loss(net, clicked, dense, *bags):
    return functional.binary_cross_entropy_with_logits(net(dense.log1p(), *bags), clicked)


def sgd(lr):
    # The gradients of the batches are added; the rate turns the sum into a mean.
    return lambda parameters, _: torch.optim.SGD(parameters, lr=lr / LANES, momentum=0.9, fused=True)


def adam(kind, lr):
    return lambda parameters, captured: kind(parameters, lr=lr, fused=True, capturable=captured)


def dlrm():
    return Dlrm(DENSE, CATEGORIES, width=16, bottom=[64], top=[64, 32])


WORKLOADS = {
    "two-batch": Workload(256, lambda: mlp(64, 128, 10), rows_and_labels(64), class_loss, sgd(0.3)),
    "mlp": Workload(256, lambda: mlp(784, 256, 256, 10), rows_and_labels(784), class_loss, sgd(0.05)),
    "cnn": Workload(32, lenet, rows_and_labels(784), class_loss, sgd(0.05)),
    "gpt": Workload(8, lambda: Gpt(VOCABULARY, CONTEXT), windows, token_loss, adam(torch.optim.AdamW, 2e-3)),
    "dlrm": Workload(256, dlrm, clicks, click_loss, adam(torch.optim.Adam, 3e-3)),
}


def twin(net):
    """A module with the same weights in the same memory, and gradients of its own."""
    other = copy.deepcopy(net)
    for weight, shared in zip(other.parameters(), net.parameters()):
        weight.data = shared.data
    return other


class Training:
    """A model for each batch with one memory for their weights, static batches, and the optimizer."""

    def __init__(self, workload, rows, device, captured=False):
        torch.manual_seed(1)
        net = workload.model().to(device)
        self.nets = [net, twin(net)]
        self.weights = [list(net.parameters()) for net in self.nets]
        self.batches = [[part.to(device) for part in workload.batch(rows)] for _ in range(LANES)]
        self.loss = workload.loss
        self.optimizer = workload.optimizer(self.weights[0], captured)

    def clear(self):
        for weights in self.weights:
            for weight in weights:
                weight.grad = None

    def lane(self, index):
        loss = self.loss(self.nets[index], *self.batches[index])
        loss.backward()
        return loss.detach()

    def update(self):
        first, second = ([weight.grad for weight in weights] for weights in self.weights)
        torch._foreach_add_(first, second)
        self.optimizer.step()

    def serial(self):
        self.clear()
        losses = [self.lane(index) for index in range(LANES)]
        self.update()
        return losses

    def forked(self, other, start):
        """A step with the second batch on the stream `other`; `start` takes what is to run there and gives its end.

        What is freed there is used again only after the next step has made it wait, so it needs no `record_stream`.
        """
        here = torch.cuda.current_stream()
        self.clear()
        other.wait_stream(here)
        end = start(lambda: self.lane_on(other, 1))
        losses = [self.lane(0), end()]
        here.wait_stream(other)
        self.update()
        return losses

    def lane_on(self, stream, index):
        with torch.cuda.stream(stream):
            return self.lane(index)


def warmed(step):
    for _ in range(WARMUP):
        step()
    return step


def eager(training):
    return warmed(training.serial)


def threads(training):
    pool, other = ThreadPoolExecutor(1), torch.cuda.Stream()
    return warmed(lambda: training.forked(other, lambda work: pool.submit(work).result))


def graph(training):
    return replayed(training, training.serial)


def forked_graph(training):
    other = torch.cuda.Stream()
    return replayed(training, lambda: training.forked(other, lambda work: work))


def replayed(training, step):
    """Replays of a captured step, which is warmed up on a stream beside, as PyTorch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warmed(step)
    torch.cuda.current_stream().wait_stream(stream)
    training.clear()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        losses = step()

    # The graph reads the batches and writes the weights without owning them.
    def replay(_owner=training):
        captured.replay()
        return losses

    return replay


def compiled(training):
    training.loss = torch.compile(training.loss, mode="reduce-overhead", fullgraph=True, dynamic=False)
    for part in sum(training.batches, []):
        torch._dynamo.mark_static_address(part)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        return training.serial()

    return warmed(step)


VARIANTS = {
    "eager": eager,
    "eager, two threads": threads,
    "graph": graph,
    "graph, two streams": forked_graph,
    "compiled": compiled,
}


@contextlib.contextmanager
def limited(seconds):
    def stop(*_):
        raise TimeoutError(f"no end after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Run:
    """A variant of a workload: its step and the times of it, or why there is none."""

    def __init__(self, variant, workload, rows, device, limit):
        self.variant, self.times, self.loss, self.parameters, self.failure = variant, [], None, 0, None
        with self.noted(), limited(limit):
            training = Training(workload, rows, device, captured="graph" in variant)
            self.parameters = sum(weight.numel() for weight in training.weights[0])
            self.step = VARIANTS[variant](training)
            for _ in range(CHECKED):
                losses = self.step()
            self.loss = sum(loss.item() for loss in losses) / LANES

    @contextlib.contextmanager
    def noted(self):
        try:
            yield
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            self.failure = f"{type(error).__name__}: {lines[0][:120]}"

    def measure(self, steps):
        gc.collect()
        gc.disable()
        with self.noted():
            for number in range(SETTLE + steps):
                start = time.perf_counter()
                self.step()
                synchronize()
                if number >= SETTLE:
                    self.times.append((time.perf_counter() - start) * 1e3)
        gc.enable()

    def row(self, first):
        row = {"variant": self.variant, "failure": self.failure, "loss": self.loss}
        if self.failure is None and first.failure is None:
            tenths = statistics.quantiles(self.times, n=10, method="inclusive")
            row |= {"median_ms": tenths[4], "p10_ms": tenths[0], "p90_ms": tenths[8], "steps": len(self.times)}
            row["speed_up"] = statistics.median(first.times) / tenths[4]
            row["same_loss"] = math.isclose(self.loss, first.loss, rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10)
        return row


def compare(name, variants, options, device):
    workload = WORKLOADS[name]
    rows = options.rows or workload.rows
    runs = [Run(variant, workload, rows, device, options.limit) for variant in variants]
    for _ in range(options.rounds):
        for run in runs:
            if run.failure is None:
                run.measure(options.steps)
    result = {"workload": name, "rows": rows, "parameters": runs[0].parameters}
    result["variants"] = [run.row(runs[0]) for run in runs]
    torch.compiler.reset()
    return result


def show(result):
    print(f"{result['workload']}: {LANES} batches of {result['rows']} rows, {result['parameters']:,} parameters")
    for row in result["variants"]:
        if "median_ms" not in row:
            print(f"  {row['variant']:20} {row['failure']}")
            continue
        times = "".join(f" {row[key]:9.4f}" for key in ("median_ms", "p10_ms", "p90_ms"))
        differs = "" if row["same_loss"] else ", NOT that of the first"
        print(f"  {row['variant']:20}{times} ms   speed-up {row['speed_up']:5.2f}x   loss {row['loss']:.5f}{differs}")
    sys.stdout.flush()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="one of them; may be repeated")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of a variant in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="rows of a batch, in place of the workload's")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--limit", type=int, default=120, help="seconds in which a variant has to be ready")
    return parser.parse_args()


def main():
    options = arguments()
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    gpu = torch.cuda.is_available()
    machine = torch.cuda.get_device_name() if gpu else "a CPU"
    print(f"torch {torch.__version__} on {machine}: median, p10, p90 of {options.rounds} x {options.steps} steps")
    variants = [name for name in VARIANTS if gpu or name == "eager"]
    if options.no_compile:
        variants = [name for name in variants if name != "compiled"]
    results = []
    for name in options.workload or WORKLOADS:
        results.append(compare(name, variants, options, "cuda" if gpu else "cpu"))
        show(results[-1])
    if options.json:
        report = {"torch": torch.__version__, "cuda": torch.version.cuda, "machine": machine, "workloads": results}
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
