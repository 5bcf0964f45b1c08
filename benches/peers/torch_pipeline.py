"""The workloads encoder-decoder and augment of `streamgrad compare` in PyTorch: serial, and on two streams as one writes it.

    python3 benches/peers/torch_pipeline.py [--batch 8,32,128] [--steps 60] [encoder-decoder] [augment]

`compare` has the same sizes on a GPU: images 3x256x256, an encoder from 16 to 4096 channels, and its decoder or a linear layer. Prints
the median milliseconds of a step that ends when the device has done it. Images are on the device, as `compare` has them.
"""

import argparse
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SIZE, WIDTH, LEVELS, CLASSES = 256, 16, 8, 10
ROWS = 512


def encoder():
    layers = [nn.Conv2d(3, WIDTH, 1)]
    for level in range(LEVELS):
        layers += [nn.ReLU(), nn.Conv2d(WIDTH << level, WIDTH << level + 1, 2, stride=2)]
    return nn.Sequential(*layers)


def decoder():
    layers = []
    for level in reversed(range(LEVELS)):
        layers += [nn.ConvTranspose2d(WIDTH << level + 1, WIDTH << level, 2, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(WIDTH, CLASSES, 3, padding=1))


class EncoderDecoder:
    def __init__(self):
        self.encoder, self.decoder = encoder().cuda(), decoder().cuda()
        self.optimizer = torch.optim.SGD(self.decoder.parameters(), lr=1e-3, fused=True)

    def labels(self, batch):
        return torch.randint(CLASSES, (batch, SIZE, SIZE), device="cuda")

    @torch.no_grad()
    def prepare(self, images):
        return self.encoder(images)

    def train(self, prepared, labels):
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.decoder(prepared), labels).backward()
        self.optimizer.step()


class Augment:
    """Random crops to half the size, resized; rotations by up to 45 degrees; blur of 7 pixels; all images of a batch at once."""

    def __init__(self):
        self.network = nn.Sequential(encoder(), nn.Flatten(), nn.Linear(WIDTH << LEVELS, CLASSES)).cuda()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, fused=True)

    def labels(self, batch):
        return torch.randint(CLASSES, (batch,), device="cuda")

    @torch.no_grad()
    def prepare(self, images):
        n, c, crop = images.shape[0], images.shape[1], SIZE // 2
        top, left = torch.randint(SIZE - crop + 1, (2, n, 1), device="cuda")
        at = torch.arange(crop, device="cuda")
        rows, columns = (top + at)[:, None, :, None], (left + at)[:, None, None, :]
        image, channel = torch.arange(n, device="cuda")[:, None, None, None], torch.arange(c, device="cuda")[None, :, None, None]
        x = F.interpolate(images[image, channel, rows, columns], (SIZE, SIZE), mode="bilinear", align_corners=False)
        angle = (torch.rand(n, device="cuda") * 2 - 1) * (math.pi / 4)
        cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        matrix = torch.stack([torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)], 1)
        x = F.grid_sample(x, F.affine_grid(matrix, x.shape, align_corners=False), mode="nearest", align_corners=False)
        sigma = 0.1 + 1.9 * torch.rand(n, 1, device="cuda")
        weight = torch.exp(-0.5 * (torch.arange(-3, 4, device="cuda") / sigma) ** 2)
        weight = (weight / weight.sum(1, keepdim=True)).repeat_interleave(c, 0)
        x = F.pad(x, (3, 3, 3, 3), mode="reflect").reshape(1, n * c, SIZE + 6, SIZE + 6)
        x = F.conv2d(x, weight[:, None, None, :], groups=n * c)
        return F.conv2d(x, weight[:, None, :, None], groups=n * c).reshape(n, c, SIZE, SIZE)

    def train(self, prepared, labels):
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.network(prepared), labels).backward()
        self.optimizer.step()


class Serial:
    def __init__(self, workload, batches):
        self.workload, self.batches = workload, batches

    def step(self, at):
        images, labels = self.batches[at % len(self.batches)]
        self.workload.train(self.workload.prepare(images), labels)


class TwoStreams(Serial):
    """Batch n + 1 is prepared beside the training of batch n, with the waits and the `record_stream` that this takes."""

    def __init__(self, workload, batches):
        super().__init__(workload, batches)
        self.ahead, self.waiting = torch.cuda.Stream(), None

    def prepare(self, at):
        main, images = torch.cuda.current_stream(), self.batches[at % len(self.batches)][0]
        self.ahead.wait_stream(main)
        with torch.cuda.stream(self.ahead):
            prepared = self.workload.prepare(images)
        images.record_stream(self.ahead)
        done = torch.cuda.Event()
        done.record(self.ahead)
        return prepared, done

    def step(self, at):
        main = torch.cuda.current_stream()
        prepared, done = self.waiting or self.prepare(at)
        main.wait_event(done)
        prepared.record_stream(main)
        self.waiting = self.prepare(at + 1)
        self.workload.train(prepared, self.batches[at % len(self.batches)][1])


def medians_ms(schedules, steps, block=10, warmup=20):
    """Steps of each schedule in turn, block by block, each until the device has done it, as `compare` times its own."""
    times = [[] for _ in schedules]
    for start in range(0, warmup + steps, block):
        for schedule, found in zip(schedules, times):
            for at in range(start, start + block):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                schedule.step(at)
                torch.cuda.synchronize()
                if at >= warmup:
                    found.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(found) for found in times]


WORKLOADS = {"encoder-decoder": EncoderDecoder, "augment": Augment}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="8,32,128")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for name in options.workloads:
        torch.manual_seed(1)
        workload = WORKLOADS[name]()
        for batch in map(int, options.batch.split(",")):
            pool = torch.rand(min(ROWS, 4 * batch), 3, SIZE, SIZE, device="cuda")
            parts = pool.split(batch)
            batches = [(parts[at % len(parts)], workload.labels(batch)) for at in range(10)]
            found = medians_ms([schedule(workload, batches) for schedule in (Serial, TwoStreams)], options.steps)
            print(f"{name} batch {batch}: serial {found[0]:.3f} ms, two streams {found[1]:.3f} ms a step, {found[0] / found[1]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
