"""The models of `models/src/workloads` in PyTorch."""

import torch
from torch import nn
from torch.nn import functional


def mlp(*sizes, last_relu=False):
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def lenet():
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, s, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, e))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context=64, width=128, heads=4):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.block, self.ln_f = GptBlock(width, heads), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        return self.head(self.ln_f(self.block(self.wte(tokens) + self.wpe.weight)))


class Dlrm(nn.Module):
    def __init__(self, dense, categories, width, bottom, top):
        super().__init__()
        vectors = len(categories) + 1
        self.bottom = mlp(dense, *bottom, width, last_relu=True)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="mean") for rows in categories)
        self.top = mlp(width + vectors * (vectors - 1) // 2, *top, 1)
        for table in self.tables:
            nn.init.normal_(table.weight, std=width**-0.5)
        # The places of the lower triangle, without the diagonal, in a matrix of products.
        pairs = [row * vectors + column for row in range(vectors) for column in range(row)]
        self.register_buffer("pairs", torch.tensor(pairs))

    def forward(self, dense, *bags):
        """`bags` are the indices and the offsets of each categorical feature in turn."""
        dense = self.bottom(dense)
        embedded = [table(*bag) for table, bag in zip(self.tables, zip(bags[::2], bags[1::2]))]
        vectors = torch.stack([dense, *embedded], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([dense, products], 1)).flatten()
