"""What shows for several numbers at once, in an order, in a half, or after very many calls."""

from __future__ import annotations

import ast
import inspect
import random

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.inputs.cases.settings import vary_number  # noqa: E402 - same
from npufix.rewriters.verification.inputs.cases.together import draw_numbers  # noqa: E402 - same
from npufix.rewriters.verification.inputs.objects.offers import guess_objects  # noqa: E402 - same
from npufix.rewriters.verification.inputs.objects.saved import offer_loads  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.attributes import sees_order  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.parameters import Parameter  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.usage import Use, find_function  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

CROP = """
def crop(h: int, w: int, cy: int, cx: int, size: int):
    y0, x0 = max(cy - size // 2, 0), max(cx - size // 2, 0)
    return y0, min(cy + size - size // 2, h), x0, min(cx + size - size // 2, w)
"""
SHARD = """
def shard(n: int, world: int, rank: int):
    '''Numbers of a rank: every rank has as many.'''
    each = -(-n // world)
    order = [i % n for i in range(each * world)]
    return order[rank * each : (rank + 1) * each]
"""
GROUP = """
from collections import OrderedDict

def group(names: list[str], sizes: list[int]):
    found = OrderedDict()
    for name, size in zip(names, sizes):
        found[name] = found.get(name, 0) + size
    return found
"""
SECTOR = """
def sector(z, n: int = 8):
    '''z (N,) complex.'''
    return torch.round(torch.angle(z) / (2 * torch.pi) * n).long() % n
"""
WARM = """
class Warm:
    def __init__(self):
        self.calls = 0

    def __call__(self, x: torch.Tensor):
        '''x (N,).'''
        self.calls += 1
        return x if self.calls > 50 else x * self.calls / 50
"""
BEST = """
def best(scores: list[float], k: int = 5):
    top = sorted(scores, reverse=True)[:k]
    return sum(top) / len(top)
"""
CONCAT = """
class Concat(torch.nn.Module):
    def __init__(self, names: list[str]):
        super().__init__()
        self.names = names

    def forward(self, inputs: dict[str, torch.Tensor]):
        '''inputs: of (B, D).'''
        return torch.cat([inputs[n] for n in self.names], -1)
"""
LOADED = """
class Scaled(torch.nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def _load_from_state_dict(self, state, prefix, meta, strict, missing, unexpected, errors):
        if prefix + "gamma" in state:
            state[prefix + "weight"] = state.pop(prefix + "gamma")
        super()._load_from_state_dict(state, prefix, meta, strict, missing, unexpected, errors)
"""
FLIP = """
import random

def flip(x, p: float = 0.5):
    '''x (B, D).'''
    return x.flip(-1) if random.random() < p else x
"""
CLOSE = """
def close(a, b, rtol: float = 0.1):
    '''a, b (N,).'''
    return (a - b).abs() <= rtol * b.abs()
"""
FLOATS = """
def in_single(batch: dict[str, torch.Tensor]):
    return {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}
"""
PICK = """
def pick(n: int, world: int, part: int):
    '''Numbers of a part; part < world.'''
    return [i for i in range(n) if i % world == part]
"""
PATH = """
def drop_path(x, p: float = 0.1, training: bool = True):
    '''x (B, D).'''
    if not training or p == 0:
        return x
    keep = torch.rand(x.shape[0], 1) >= p
    return x * keep / (1 - p)
"""
PAGES = """
class Pages:
    def __init__(self, blocks: int = 4):
        self.free = list(range(blocks))
        self.owned = {}

    def take(self, seq_id: int):
        if not self.free:
            self.free.extend(self.owned.pop(next(iter(self.owned))))
        block = self.free.pop(0)
        self.owned.setdefault(seq_id, []).append(block)
        return block
"""
BLEND = """
def blend(a, b, w):
    '''a, b (B, D), w (B, 1).'''
    return a * (1 - w) + b * w
"""
MIXED = """
def mixed(y, lam: float, order):
    '''y (B, K) of shares, order (B,) long, a permutation.'''
    return lam * y + (1 - lam) * y[order]
"""
INTO = """
@torch.no_grad()
def turn_into(out: torch.Tensor, x: torch.Tensor):
    '''out, x (N, D).'''
    a, b = x.chunk(2, -1)
    out.copy_(torch.cat([-b, a], -1))
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "refuted"),
    [
        (CROP, "min(cx + size - size // 2, w)", "min(cx + size // 2, w)", True),
        (CROP, "min(cx + size - size // 2, w)", "min(cx + (size + 1) // 2, w)", False),
        # of a rank that there is none of, nobody asks
        (SHARD, "order[rank * each : (rank + 1) * each]", "order[rank * each :][:each]", False),
        (SHARD, "for i in range", "for i in sorted(range(each), reverse=True) or range", True),
        (GROUP, "in zip(names, sizes)", "in sorted(zip(names, sizes))", True),
        (
            SECTOR,
            "torch.round(torch.angle(z) / (2 * torch.pi) * n)",
            "torch.floor(torch.angle(z) / (2 * torch.pi) * n + 0.5)",
            True,
        ),
        (WARM, "> 50", "> 51", True),
        (BEST, "[:k]", "", True),
        (CONCAT, "in self.names]", "in sorted(self.names)]", True),
        (
            INTO,
            "    out.copy_(torch.cat([-b, a], -1))",
            "    n = a.shape[-1]\n    out[..., :n] = -b\n    out[..., n:] = a",
            True,
        ),
        (FLIP, "< p", "< 0.9 * p", True),
        (CLOSE, "b.abs()", "torch.max(a.abs(), b.abs())", True),
        (FLOATS, "v.float() if v.is_floating_point() else v", "v.float()", True),
        (PICK, "[i for i in range(n) if i % world == part]", "[*range(part, n, world)]", False),
        (PATH, "x * keep / (1 - p)", "torch.where(keep, x / (1 - p), 0.0)", False),
        (BLEND, "a * (1 - w) + b * w", "torch.lerp(a, b, w)", False),  # which takes one dtype
        (MIXED, "lam * y + (1 - lam) * y[order]", "(1 - lam) * y + lam * y[order]", True),
        (PAGES, "next(iter(self.owned))", "min(self.owned)", True),
    ],
)
def test_what_shows_for_several_at_once(text: str, old: str, new: str, refuted: bool) -> None:  # noqa: FBT001 - a parameter
    found = verdict(text, (old, new))
    assert found.status is (Status.REFUTED if refuted else Status.EQUIVALENT), found


def test_numbers_keep_to_their_names() -> None:
    known = {"n": 8, "world": 2, "rank": 0, "warmup_steps": 1, "total_steps": 5, "sizes": [1, 2]}
    drawn = [draw_numbers(known, 6, random.Random(seed)) for seed in range(200)]  # noqa: S311 - the same
    assert all(0 <= d["rank"] < d["world"] and d["n"] > 0 for d in drawn)
    assert all(d["warmup_steps"] <= d["total_steps"] for d in drawn)
    assert any(d["n"] < d["world"] for d in drawn)
    assert any(len(d["sizes"]) > known["n"] for d in drawn)


def test_models_come_in_lists() -> None:
    annotation = "list[nn.Module]"
    made = guess_objects(Parameter("models", annotation, inspect.Parameter.empty), Use())
    assert [str(spec) for spec in made] == [
        "a list of three nn.Linear",
        "a list of three nn.BatchNorm1d",
    ]
    first, second, _ = made[0].make()
    assert not torch.equal(first.weight, second.weight)


def test_other_settings_show() -> None:
    """An epsilon is one beside numbers about one, and no share: ``sqrt(x + eps)``."""
    given = [1e-12, 1e-8, -1e-8, 1e-3, 0.5, 0.0]
    assert [*map(vary_number, given)] == [2**-10, 2**-10, -(2**-10), 0.064, 0.375, 0.25]


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        ("nn.modules.conv._ConvNd", ["an nn.Conv2d", "an nn.Conv1d"]),
        ("_BatchNorm", ["an nn.BatchNorm2d", "an nn.BatchNorm1d"]),
        ("nn.BatchNorm1d", ["an nn.BatchNorm1d"]),
        ("_ConvState", []),
    ],
)
def test_layers_are_those_that_have_a_base_in_common(annotation: str, kinds: list[str]) -> None:
    made = guess_objects(Parameter("part", annotation, inspect.Parameter.empty), Use())
    assert [str(spec) for spec in made] == kinds


def test_states_are_loaded_by_other_keys() -> None:
    function = find_function(ast.parse(LOADED), "Scaled._load_from_state_dict")
    names = ("state", "prefix", "meta", "strict", "missing", "unexpected", "errors")
    parameters = [Parameter(name, "", inspect.Parameter.empty) for name in names]
    loads = offer_loads(torch.nn.LayerNorm(4, bias=False), parameters, function, function.name)
    keys = [load["state"].keys for load in loads]
    assert ("layer.weight",) in keys
    assert ("layer.gamma",) in keys


@pytest.mark.parametrize(
    ("text", "qualname", "what", "seen"),
    [
        ('def f(x):\n    return {"a": x, "b": -x}', "f", "order of result", False),
        ("def f(names):\n    return {n: 1 for n in names}", "f", "order of result", True),
        ("class A:\n    def f(self):\n        self.h.popitem()", "A.f", "order of self.h", True),
        ("class A:\n    def f(self, k):\n        self.h[k] = 1", "A.f", "order of self.h", False),
        (
            "class A:\n    def f(self, k):\n        return len(self.h)",
            "A.f",
            "order of self.h",
            False,
        ),
        ("class A:\n    def f(self):\n        return old(self.h)", "A.f", "order of self.h", True),
    ],
)
def test_who_sees_an_order(text: str, qualname: str, what: str, seen: bool) -> None:  # noqa: FBT001 - a parameter
    said = f"""{what} is "'a', 'b'" in the original, "'b', 'a'" in the patched code"""
    assert sees_order(text, qualname, what, said) is seen


def test_a_parameter_is_not_its_own_gradient() -> None:
    code = """
def step(param: torch.Tensor, grad: torch.Tensor, lr: float, wd: float):
    \'\'\'param, grad (N).\'\'\'
    param.sub_(lr * (grad + wd * param))
"""
    new = "param.mul_(1 - lr * wd)\n    param.sub_(grad, alpha=lr)"
    found = verdict(code, ("param.sub_(lr * (grad + wd * param))", new))
    assert "for grad too" not in found.reason, found


HELD = """
class Trainer:
    def __init__(self, rate: float = 0.1):
        self.models = [torch.nn.Linear(4, 4)]
        self.optimizer = torch.optim.SGD(self.models[0].parameters(), lr=rate)

    def step(self):
        for p in self.models[0].parameters():
            p.grad = torch.ones_like(p) * 2
        self.optimizer.step()
"""
SEEN = """
class Cache:
    def __init__(self):
        self.seen = {}

    def put(self, key: int, value: int):
        self.seen.pop(key, None)
        self.seen[key] = value

    def get(self):
        return self.seen
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (HELD, ("torch.ones_like(p) * 2", "torch.ones_like(p)")),  # models in a list
        (
            SEEN,
            ("self.seen.pop(key, None)", "self.seen.get(key)"),
        ),  # whoever gets it sees the order
    ],
)
def test_what_a_class_holds_in_lists_and_hands_out_is_compared(
    code: str, change: tuple[str, str]
) -> None:
    found = verdict(code, change)
    assert found.status is Status.REFUTED, found


GATE = """
class Gate(torch.nn.Module):
    def __init__(self, dim: int = 8, gain: float = 1.0, shift: float = 0.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
        self.gain, self.shift = gain, shift

    def forward(self, x):
        return x * torch.sigmoid(self.gain * x + self.shift) * self.weight
"""


def test_settings_are_others_together() -> None:
    """A gain of 1 and a shift of 0, each of which hides what the other is applied to."""
    found = verdict(GATE, ("self.gain * x + self.shift", "self.gain * (x + self.shift)"))
    assert found.status is Status.REFUTED
