"""Values, gradients and second derivatives of everyday ops and layers, by PyTorch, for models/tests/everyday.rs.

    python3 tests/reference/everyday.py > tests/data/everyday.json

Both sides draw the inputs from the seed of a case, so that the file has results only. A gradient is that of the sum of the
result times weights that are drawn, too; a second derivative is that of the sum of all gradients times further weights.
"""

import itertools
import json
import math

import torch
from torch import nn
from torch.nn import functional as F

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0]
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16}


def numbers(seed, count, special=False):
    """Multiples of 1/16 from -2 to 2, with ties and zeros; every fourth one special where asked for."""
    state, values = seed * 7919 + 17, []
    for i in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        value = (state >> 12) % 65 / 16 - 2
        values.append(SPECIAL[(state >> 20) % 5] if special and i % 4 == 3 else value)
    return values


def tensor(seed, shape, dtype, special=False):
    values = numbers(seed, math.prod(shape), special)
    return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)


def mask(seed, shape):
    return tensor(seed, shape, torch.float64) > 0


CASES = []


def case(op, shapes, run, args=(), special=(False,), dtypes=("f64", "f32", "bf16"), gradients=True, seeds=2):
    """Adds cases of `run(inputs, seed)` for each list of shapes, seed and type."""
    for shape, at, dtype, odd in itertools.product(shapes, range(seeds), dtypes, special):
        CASES.append((op, list(args), shape, 31 * len(CASES) + at, dtype, odd, gradients and not odd, run))


def flat(x):
    def number(value):
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, int):
            return value
        return str(value) if not math.isfinite(value) else float(f"{value:.13g}")

    x = x.detach().flatten()
    if x.is_floating_point():
        # The sum gives zeros memory that PyTorch keeps without.
        x = x.double() + 0.0
    return [number(value) for value in x.tolist()]


def result(op, args, shapes, seed, dtype, odd, gradients, run):
    inputs = [tensor(seed + 100 * k, shape, DTYPES[dtype], odd) for k, shape in enumerate(shapes)]
    inputs = [x.requires_grad_(gradients) for x in inputs]
    outputs = run(inputs, seed)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    entry = {"op": op, "args": args, "shapes": shapes, "seed": seed, "dtype": dtype, "special": odd}
    entry["values"] = [{"shape": list(y.shape), "numbers": flat(y)} for y in outputs]
    differentiable = [y for y in outputs if y.requires_grad]
    if not gradients or not differentiable:
        return entry
    terms = [(y * tensor(seed + 7, y.shape, y.dtype)).sum() for y in differentiable]
    first = torch.autograd.grad(sum(terms), inputs, create_graph=dtype == "f64", allow_unused=True)
    entry["gradients"] = [None if g is None else flat(g) for g in first]
    graphs = [g for g in first if g is not None and g.requires_grad]
    if dtype == "f64" and graphs:
        terms = [(g * tensor(seed + 9, g.shape, g.dtype)).sum() for g in graphs]
        second = torch.autograd.grad(sum(terms), inputs, allow_unused=True)
        entry["second"] = [None if g is None else flat(g) for g in second]
    return entry


MATRICES = [[[3, 4]], [[1, 5]], [[2, 1]], [[0, 3]]]
ANY = [[[3, 4]], [[1, 5]], [[7]], [[]], [[2, 0]]]
BOTH = (False, True)

for name, function in {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "tan": torch.tan,
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x),
    "log2": torch.log2,
    "log_sigmoid": F.logsigmoid,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.75),
}.items():
    # Logarithms are not differentiated where they are infinite or NaN.
    domain = name not in ("log1p", "log2")
    case(name, ANY[:4], lambda v, s, function=function: function(v[0]), special=BOTH, gradients=domain)
for name, function in {"isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite}.items():
    case(name, ANY, lambda v, s, function=function: function(v[0]), special=BOTH, gradients=False, seeds=1)
for axis, descending in itertools.product((0, -1), BOTH):
    sort = lambda v, s, axis=axis, down=descending: tuple(torch.sort(v[0], dim=axis, descending=down, stable=True))
    case("sort", MATRICES + [[[]]], sort, [axis, descending], special=BOTH)
    case("topk", [[[5, 4]], [[9, 2]]], lambda v, s, axis=axis, down=descending: torch.topk(v[0], 2, axis, down)[0], [axis, descending], gradients=False)
for axes in ([0], [1], [0, 1], []):
    case("flip", MATRICES, lambda v, s, axes=axes: torch.flip(v[0], axes), axes, dtypes=("f64", "bf16"), seeds=1)
for shift, axis in itertools.product((1, -1, 5), (0, 1)):
    case("roll", MATRICES, lambda v, s, a=(shift, axis): torch.roll(v[0], *a), [shift, axis], dtypes=("f64", "bf16"), seeds=1)
for counts in ([1, 1], [2, 3], [2, 1, 2]):
    case("repeat", MATRICES, lambda v, s, counts=counts: v[0].repeat(counts), counts, dtypes=("f64", "f32"), seeds=1)
for axis, step in itertools.product((0, 1), (1, 2, 3)):
    taken = lambda v, s, a=axis, k=step: v[0][::k] if a == 0 else v[0][:, ::k]
    case("step_by", MATRICES, taken, [axis, step], dtypes=("f64", "bf16"), seeds=1)
case("chunk", [[[5, 2]], [[4, 3]], [[1, 2]]], lambda v, s: torch.chunk(v[0], 3, 0), dtypes=("f64",))
for axes, keep in itertools.product(([0], [1]), BOTH):
    for name, function in {"any": torch.any, "all": torch.all}.items():
        reduced = lambda v, s, f=function, a=axes, k=keep: f(v[0], dim=a[0], keepdim=k)
        case(name, MATRICES, reduced, [axes[0], keep], special=BOTH, gradients=False, dtypes=("f64",), seeds=1)
for name, function in {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "bool_mul": lambda a, b: (a != 0) * (b != 0),
    "bool_maximum": lambda a, b: torch.maximum(a != 0, b != 0),
    "bool_minimum": lambda a, b: torch.minimum(a != 0, b != 0),
}.items():
    case(name, [[[3, 4], [4]], [[5], [5]]], lambda v, s, f=function: f(v[0], v[1]), gradients=False, dtypes=("f64", "bf16"))
case("one_hot", [[[2, 3]], [[4]]], lambda v, s: F.one_hot((v[0] * 4 + 8).long(), 17), gradients=False, dtypes=("f64",))
case("nonzero", ANY + [[[2, 3, 2]]], lambda v, s: torch.nonzero(v[0] > 0), gradients=False, dtypes=("f64",))
case("masked_select", MATRICES, lambda v, s: torch.masked_select(v[0], mask(s + 3, v[0].shape)))
for axis, keep in itertools.product((0, -1), BOTH):
    case("prod", MATRICES, lambda v, s, a=axis, k=keep: torch.prod(v[0], a, k), [axis, keep], special=BOTH, dtypes=("f64", "f32"))
case("cumprod", MATRICES, lambda v, s: torch.cumprod(v[0], 1), [1], special=BOTH, dtypes=("f64", "f32"))
for p, axis in itertools.product((0.0, 0.5, 1.0, 2.0, 3.0, math.inf, -math.inf), (0, 1)):
    norm = lambda v, s, p=p, a=axis: torch.linalg.vector_norm(v[0], p, a)
    case("norm", MATRICES[:3], norm, [str(p), axis], dtypes=("f64", "f32"), gradients=p in (1.0, 2.0, 3.0))
for p, axis in itertools.product((1.0, 2.0), (0, 1)):
    case("normalize", MATRICES[:3], lambda v, s, p=p, a=axis: F.normalize(v[0], p, a), [p, axis], dtypes=("f64", "f32"))
for axis in (0, 1):
    cosine = lambda v, s, a=axis: F.cosine_similarity(v[0], v[1], a)
    case("cosine_similarity", [[[3, 4], [3, 4]], [[3, 4], [1, 4]]], cosine, [axis], dtypes=("f64", "f32"))
for equation, shapes in [
    ("ij,jk->ik", [[3, 4], [4, 2]]),
    ("ij,jk", [[3, 4], [4, 2]]),
    ("ij->ji", [[3, 4]]),
    ("ij->", [[3, 4]]),
    ("ij->j", [[3, 4]]),
    ("ii->i", [[3, 3]]),
    ("ii", [[3, 3]]),
    ("i,j->ij", [[3], [4]]),
    ("i,i->", [[4], [4]]),
    ("bij,bjk->bik", [[2, 3, 4], [2, 4, 2]]),
    ("bhqd,bhkd->bhqk", [[2, 2, 3, 2], [2, 2, 4, 2]]),
    ("...ij,...jk->...ik", [[2, 1, 3, 2], [2, 2, 2]]),
    ("ij,jk,kl->il", [[2, 3], [3, 2], [2, 3]]),
    ("ij,ij,ij->i", [[2, 3], [2, 3], [2, 3]]),
    ("bn,anm,bm->ba", [[2, 3], [2, 3, 2], [2, 2]]),
    ("iji,kj->jk", [[2, 3, 2], [2, 3]]),
    ("ij,k->jk", [[2, 3], [2]]),
    ("ij,jk->ik", [[0, 3], [3, 2]]),
    ("ij,jk->ik", [[2, 0], [0, 2]]),
]:
    case("einsum", [shapes], lambda v, s, e=equation: torch.einsum(e, *v), [equation], dtypes=("f64", "f32"))
case("outer", [[[3], [4]]], lambda v, s: torch.outer(v[0], v[1]), dtypes=("f64", "f32"))
case("dot", [[[4], [4]]], lambda v, s: torch.dot(v[0], v[1]), dtypes=("f64", "f32"))
for log_target, reduction in itertools.product(BOTH, ("none", "mean", "sum")):
    target = lambda t, log: t if log else t.abs()
    loss = lambda v, s, l=log_target, r=reduction: F.kl_div(v[0], target(v[1].detach(), l), reduction=r, log_target=l)
    case("kl_div", [[[3, 4], [3, 4]]], loss, [log_target, reduction], dtypes=("f64", "f32"))
for reduction in ("none", "mean", "sum"):
    bce = lambda v, s, r=reduction: F.binary_cross_entropy_with_logits(
        v[0], v[1].detach().abs() / 2, weight=v[2].detach().abs(), pos_weight=v[3].detach().abs(), reduction=r
    )
    case("bce_with_logits", [[[3, 4], [3, 4], [3, 1], [4]]], bce, [reduction], dtypes=("f64", "f32"))
    for smoothing in (0.0, 0.25):
        soft = lambda v, s, r=reduction, m=smoothing: F.cross_entropy(
            v[0], v[1].softmax(1), weight=v[2].detach().abs(), reduction=r, label_smoothing=m
        )
        case("soft_cross_entropy", [[[3, 4], [3, 4], [4]]], soft, [reduction, smoothing], dtypes=("f64", "f32"))

KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def recurrent(kind, layers, both, bias, batch_first, given):
    """The parameters follow the input, and the state is last, where it is given."""

    def run(v, seed):
        module = KINDS[kind](2, 3, layers, bias=bias, batch_first=batch_first, bidirectional=both).to(v[0].dtype)
        names = [name for name, _ in module.named_parameters()]
        parameters = dict(zip(names, v[1:]))
        states = v[1 + len(names) :]
        state = None if not given else tuple(states) if kind == "lstm" else states[0]
        y, last = torch.func.functional_call(module, parameters, (v[0], state))
        return (y, *last) if kind == "lstm" else (y, last)

    module = KINDS[kind](2, 3, layers, bias=bias, bidirectional=both)
    shapes = [[2, 4, 2] if batch_first else [4, 2, 2]] + [list(p.shape) for p in module.parameters()]
    states = [[layers * (1 + both), 2, 3]] * ((2 if kind == "lstm" else 1) if given else 0)
    args = [kind, layers, both, bias, batch_first, given]
    case("recurrent", [shapes + states], run, args, dtypes=("f64", "f32"), seeds=1)


for kind, both, given in itertools.product(KINDS, BOTH, BOTH):
    recurrent(kind, 1, both, True, False, given)
    recurrent(kind, 2, both, not given, given, given)

torch.backends.cudnn.enabled = False
entries = [result(*parts) for parts in CASES]
print('{"torch": %s, "cases": [' % json.dumps(torch.__version__))
print(",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries))
print("]}")
