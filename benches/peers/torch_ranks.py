"""What `benches/cuda_ranks.rs` measures, in PyTorch: all_reduce by NCCL, and GPT-2 small with DistributedDataParallel.

    python3 benches/peers/torch_ranks.py [--precision f32|tf32|bf16] [--ranks 2]

A process for each rank. Bandwidth is that of the bus, 2 (n - 1) / n bytes / time. Times are those of rank 0, in the median.
"""

import argparse
import contextlib
import os
import statistics
import time

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_large import Gpt2


def times(count, run):
    measured = []
    for at in range(count + 5):
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if at >= 5:
            measured.append(time.perf_counter() - begin)
    return statistics.median(measured)


def all_reduce(rank, ranks):
    calls, size = 10, 1 << 10
    while size <= 256 << 20:
        x = torch.full((size // 4,), 1.0 + rank, device="cuda")
        distributed.all_reduce(x)
        assert (x == ranks * (ranks + 1) / 2).all()
        x.zero_()

        def run():
            for _ in range(calls):
                distributed.all_reduce(x)

        seconds = times(10 if size >= 64 << 20 else 50, run) / calls
        if rank == 0:
            bandwidth = 2 * (ranks - 1) / ranks * size / seconds / 1e9
            print(f"all_reduce torch {size:>10} bytes {seconds * 1e6:10.1f} us {bandwidth:8.2f} GB/s", flush=True)
        size *= 4


def training(parallel, precision):
    net = Gpt2().cuda()
    called = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True) if parallel else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    tokens, targets = torch.randint(50304, (2, 4, 1024), device="cuda")

    def step():
        cast = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with cast:
            loss = functional.cross_entropy(called(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        called.zero_grad(set_to_none=True)

    return times(20, step) * 1e3


def process(rank, ranks, precision):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    distributed.init_process_group("nccl", rank=rank, world_size=ranks)
    all_reduce(rank, ranks)
    alone, together = training(False, precision), training(True, precision)
    if rank == 0:
        scaling = alone / together
        print(f"gpt2 torch {precision}: 1 rank {alone:.3f} ms, {ranks} ranks {together:.3f} ms a step, scaling {scaling:.3f}", flush=True)
    distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["f32", "tf32", "bf16"], default="f32")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    # Multicast is unsafe on some virtual machines.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.multiprocessing.spawn(process, (options.ranks, options.precision), options.ranks)


if __name__ == "__main__":
    main()
