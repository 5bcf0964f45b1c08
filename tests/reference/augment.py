"""Resized, rotated and blurred images, by PyTorch, for models/tests/augment.rs.

    python3 tests/reference/augment.py > tests/data/augment.json

Rotations are torchvision's, written out: an affine grid about the centre, nearest pixels, zeros outside.
"""

import json
import math
import re

import torch
from torch.nn import functional

SIGMAS = [0.1, 0.8, 2.0]
DEGREES = [0.0, 30.0, -45.0]
TAPS = 5


def rotate(image, degrees):
    height, width = image.shape[-2:]
    turn = math.radians(degrees)
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float32) - (height - 1) / 2,
        torch.arange(width, dtype=torch.float32) - (width - 1) / 2,
        indexing="ij",
    )
    from_x = math.cos(turn) * x - math.sin(turn) * y
    from_y = math.sin(turn) * x + math.cos(turn) * y
    grid = torch.stack((from_x / (0.5 * width), from_y / (0.5 * height)), dim=-1)
    return functional.grid_sample(image[None], grid[None], "nearest", "zeros", align_corners=False)[0]


def blur(image, sigma):
    taps = torch.arange(TAPS, dtype=torch.float32) - (TAPS - 1) / 2
    weights = torch.exp(-0.5 * (taps / sigma) ** 2)
    weights = weights / weights.sum()
    kernel = torch.outer(weights, weights).expand(image.shape[0], 1, TAPS, TAPS)
    padded = functional.pad(image[None], [TAPS // 2] * 4, mode="reflect")
    return functional.conv2d(padded, kernel, groups=image.shape[0])[0]


def main():
    torch.manual_seed(7)
    images = torch.rand(3, 2, 6, 7)
    sizes = [[9, 4], [6, 7], [12, 14]]
    reference = {
        "torch": torch.__version__,
        "shape": list(images.shape),
        "images": images.flatten().tolist(),
        "sizes": sizes,
        "resized": [
            functional.interpolate(images, size, mode="bilinear", align_corners=False).flatten().tolist()
            for size in sizes
        ],
        "degrees": DEGREES,
        "rotated": torch.stack([rotate(i, d) for i, d in zip(images, DEGREES)]).flatten().tolist(),
        "taps": TAPS,
        "sigmas": SIGMAS,
        "blurred": torch.stack([blur(i, s) for i, s in zip(images, SIGMAS)]).flatten().tolist(),
    }
    text = json.dumps(reference, indent=1)
    print(re.sub(r"\[[^][]*\]", lambda numbers: " ".join(numbers.group().split()), text))


main()
