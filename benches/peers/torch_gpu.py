"""The workloads of `streamgrad compare` as PyTorch steps on a GPU: two batches of 256 rows a step, shared weights.

    python3 benches/peers/torch_gpu.py          # needs torch and a GPU

Prints the median milliseconds of a step whose batches run one after the other, and of one with a stream and a thread for
each batch, with the waits that PyTorch asks of its user.
"""

import statistics
import threading
import time

import torch
from torch import nn


def model(sizes):
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).cuda()


def median_ms(step, warmup=100, steps=400):
    times = []
    for number in range(warmup + steps):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def compare(name, sizes, rows=256):
    net = model(sizes)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.randn(rows, sizes[0], device="cuda") for _ in range(2)]
    labels = [torch.randint(0, sizes[-1], (rows,), device="cuda") for _ in range(2)]
    weights = list(net.parameters())

    def gradients(lane):
        loss = nn.functional.cross_entropy(net(batches[lane]), labels[lane])
        return torch.autograd.grad(loss, weights)

    def update(both):
        for weight, one, two in zip(weights, *both):
            weight.grad = one + two
        optimizer.step()

    def serial():
        update([gradients(0), gradients(1)])

    streams = [torch.cuda.Stream() for _ in range(2)]

    def concurrent():
        main = torch.cuda.current_stream()
        both = [None, None]

        def lane(index):
            with torch.cuda.stream(streams[index]):
                streams[index].wait_stream(main)
                both[index] = gradients(index)

        threads = [threading.Thread(target=lane, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in range(2):
            main.wait_stream(streams[index])
            for gradient in both[index]:
                gradient.record_stream(main)
        update(both)

    one, two = median_ms(serial), median_ms(concurrent)
    print(f"{name:12} serial {one:.3f} ms   two streams {two:.3f} ms   speed-up {one / two:.2f}x")


if __name__ == "__main__":
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    torch.backends.cuda.matmul.allow_tf32 = False
    compare("two-batch", [64, 128, 10])
    compare("mlp", [784, 256, 256, 10])
