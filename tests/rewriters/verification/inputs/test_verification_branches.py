"""Both ways of the tests in a change are taken, and sizes are what the text says."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")

from test_exposing_calls import verified

from npufix.rewriters.verification.calls.coverage import LinesToCover, find_blocks, trace_lines
from npufix.rewriters.verification.inputs.source.path_conditions import list_always_called
from npufix.rewriters.verification.verdict import Status

BRANCHES = """
import torch

def f(x, mask=None, cap: float = 0.0):
    if mask is not None and cap > 0:
        x = x * mask
    return x + 1 if cap else x
"""
HIDDEN = """
import torch

def f(rows: int, n: int = 4):
    j = torch.arange(rows)
    return torch.zeros(rows).masked_fill(j < n, float("-inf"))
"""
BETA = """
def f(d, beta: float = 1.0):
    d = d.abs()
    if beta < 1e-5:
        return d.sum()
    return (d.pow(2) / beta).where(d < beta, d).sum()
"""
ROTARY = """
import torch

def f(x, cos, n: int = 4):
    "x (B, T, D), cos (T, n)"
    return torch.cat((x[..., :n] * cos, x[..., n:]), -1)
"""
POSITIONS = """
import torch

def f(x, table):
    "x (B, T, D), table (R, D)"
    at = torch.arange(x.shape[1])
    return x + table[at.clamp(max=table.shape[0] - 1)]
"""
FLAG = """
class Gate:
    def __init__(self, config):
        self.config = config

    def forward(self, x):
        if self.config.norm_prob:
            x = x / x.sum(-1, keepdim=True)
        return x
"""
SHORTCUT = """
from torch import nn

class Block(nn.Module):
    def __init__(self, down=None):
        super().__init__()
        self.down = down

    def forward(self, x):
        y = x.sin()
        if self.down is not None:
            x = self.down(x)
        return x + y
"""

WEIGHTED = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, dim, eps, affine=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            x = x * self.weight
        return x
"""
EMBEDDED = """
import torch
from torch import nn

class Embeddings(nn.Module):
    def __init__(self, count: int = 16, width: int = 8):
        super().__init__()
        self.words = nn.Embedding(count, width)
        self.kinds = nn.Embedding(2, width)

    def forward(self, input_ids=None, kind_ids=None, inputs_embeds=None):
        if input_ids is not None:
            shape = input_ids.size()
            inputs_embeds = self.words(input_ids)
        else:
            shape = inputs_embeds.size()[:-1]
        if kind_ids is None:
            kind_ids = torch.zeros(shape, dtype=torch.long)
        return inputs_embeds + self.kinds(kind_ids)
"""
ROBUST = """
import torch

def robust(pred, target, delta: float = 1.0):
    err = (pred - target).abs()
    large = delta * (err - 0.5 * delta)
    return torch.where(err <= delta, 0.5 * err**2, large).mean()

def gated(x):
    a, b = x.chunk(2, -1)
    return a * b
"""
GATED_ROBUST = ROBUST.replace(
    "    err = (pred - target)",
    "    a, b = (pred - target).chunk(2, -1)\n    err = torch.cat((b, a), -1)",
)
NORMED = """
def f(x, weight, bias):
    return x * weight + bias
"""
WRONG = {
    "a default beside code that takes halves": (ROBUST, "err - 0.5 * delta", "err - 0.5"),
    "a default within code that takes halves": (GATED_ROBUST, "err - 0.5 * delta", "err - 0.5"),
    "an argument that another one hides": (
        EMBEDDED,
        "inputs_embeds + self.kinds(kind_ids)",
        "inputs_embeds.add_(self.kinds(kind_ids))",
    ),
    "a weight that may be None": (
        WEIGHTED,
        "        if self.weight is not None:\n    ",
        "        x = x.to(self.weight.dtype)\n",
    ),
    "what is minus infinity": (HIDDEN, "j < n", "j <= n"),
    "a test of a number": (BETA, "    if beta < 1e-5:\n        return d.sum()\n", ""),
    "a width that is a default": (
        ROTARY,
        "x[..., :n] * cos, x[..., n:]",
        "x[..., n:], x[..., :n] * cos",
    ),
    "positions in half precision": (POSITIONS, "x.shape[1])", "x.shape[1]).to(table).long()"),
    "a configuration's other state": (FLAG, "        if self.config.norm_prob:\n    ", ""),
    "a layer that may be absent": (SHORTCUT, "self.down(x)", "self.down(y)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_changes_are_refuted(name: str) -> None:
    verdict = verified(*WRONG[name])
    assert verdict.status is Status.REFUTED, verdict


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (EMBEDDED, "inputs_embeds + self.kinds(kind_ids)", "self.kinds(kind_ids) + inputs_embeds"),
        (ROBUST, "x.chunk(2, -1)", "x.split(x.shape[-1] // 2, -1)"),  # an odd width has no halves
        (NORMED, "x * weight + bias", "bias.addcmul(x, weight)"),  # that is added: no flag
    ],
    ids=["another source", "an odd width", "a bias"],
)
def test_right_changes_are_equivalent(text: str, old: str, new: str) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is Status.EQUIVALENT, verdict


def test_both_ways_of_a_test_must_be_taken() -> None:
    every = LinesToCover(BRANCHES, "m.py", [5, 6, 7])
    namespace: dict[str, object] = {}
    exec(compile(BRANCHES, "m.py", "exec"), namespace)  # noqa: S102 - our own
    f = namespace["f"]
    assert callable(f)

    def left(*calls: tuple[object, ...]) -> str:
        with trace_lines("m.py") as ran:
            for call in calls:
                f(*call)
        reached = every.reached(ran)
        assert every.reached(reached) == reached
        return every.name(every.unreached(reached))

    some = (1, 2, 3.0)
    assert left(some)  # and a call before: Python 3.12 tells nothing of the first
    assert left(some, (1,), (1, 2)) == ""
    assert left(some) == "5 (mask is not None: False), 5 (cap > 0: False), 7 (cap: False)"
    # Where all that has changed is within one branch, the other one is as it was.
    test = {"mask is not None and cap > 0: True"}
    assert LinesToCover(BRANCHES, "m.py", [6], test).unreached({6}) == []
    assert len(LinesToCover(BRANCHES, "m.py", [6]).unreached({6})) > 1
    assert find_blocks(BRANCHES, [6]) == test


def test_what_goes_through_something_must_find_an_item_there() -> None:
    text = "def f(xs, n):\n    return [x + n for x in xs], sum(xs)\n"
    wanted = LinesToCover(text, "m.py", [2])
    namespace: dict[str, object] = {}
    exec(compile(text, "m.py", "exec"), namespace)  # noqa: S102 - our own
    f = namespace["f"]
    assert callable(f)

    def left(*rows: int) -> str:
        with trace_lines("m.py") as ran:
            f([*rows], 1)
        return wanted.name(wanted.unreached(ran))

    left(2)  # Python 3.12 tells nothing of the first call
    assert left(2) == ""
    assert left() == "2 (for x in xs: True)"
    # what goes through the same in the other version has not changed
    other = find_blocks(text.replace("sum(xs)", "len(xs)"), [2])
    assert LinesToCover(text, "m.py", [2], other).unreached({2}) == []


def test_a_way_that_is_never_taken_is_named() -> None:
    text = """
    import torch

    def f(x):
        if x.is_sparse:
            x = x.to_dense()
        return x + 1
    """
    verdict = verified(text, "x.is_sparse", "x.layout == torch.sparse_coo")
    assert verdict.status is Status.NOT_VERIFIED, verdict
    assert "(x.is_sparse: True)" in verdict.reason


UNMADE = """
import torch.nn.functional as F
from mmcv.cnn import build_layer
from mmengine.model import BaseModule
from torch import nn

class Block(BaseModule):
    def __init__(self, planes, norm_cfg):
        super().__init__()
        self.conv = build_layer(norm_cfg, planes)
        self.relu = nn.ReLU(inplace=True)
        self.tag = norm_cfg["tag"]

    def forward(self, x):
        out = self.conv(x) + x
        out = F.relu(out)
        return out
"""


def test_an_object_that_cannot_be_made_has_what_its_init_sets_all_the_same() -> None:
    right = verified(UNMADE, "F.relu(out)", "self.relu(out)")
    assert right.status is Status.EQUIVALENT, right
    wrong = verified(UNMADE, "F.relu(out)", "self.relu(out) * 2")
    assert wrong.status is Status.REFUTED, wrong
    tagged = "self.relu(out) if self.tag else self.relu(out)"
    assert verified(UNMADE, "F.relu(out)", tagged).status is not Status.REFUTED
    forgotten = verified(
        UNMADE.replace("BaseModule)", "nn.Module)"), "F.relu(out)", "self.act(out)"
    )
    assert forgotten.status is Status.REFUTED, forgotten


def test_both_ways_of_a_test_are_asked_for_but_those_of_a_device_or_of_an_exception() -> None:
    text = (
        "def f(input_ids, mode):\n    if input_ids is not None:\n        return 1\n"
        "    if is_npu():\n        return 2\n"
        "    if mode == 'b':\n        return 3\n    raise KeyError\n"
    )
    wanted = LinesToCover(text, "m.py", [2, 4, 6])
    assert wanted.name(wanted.unreached({2, 4, 6})) == (
        "2 (input_ids is not None: False), 2 (input_ids is not None: True), 6 (mode == 'b': True)"
    )


@pytest.mark.parametrize(
    ("body", "called"),
    [
        ("n = reduce(x)\n    return n", {"reduce"}),
        ("with lib.no_sync():\n        x = reduce(x)\n    return x", {"reduce"}),
        ("if x is None:\n        return x\n    return reduce(x)", set()),
        ("if n:\n        x = reduce(x)\n    return x", set()),
        ("y = reduce(x) if n else x\n    return n and lib.f(y)", set()),
        ("reduce = n\n    x(n)\n    return reduce(x)", set()),
        ("return [lib.f(i) for i in x]", set()),
    ],
)
def test_what_every_call_calls(body: str, called: set[str]) -> None:
    tree = ast.parse(f"def f(x, n):\n    {body}\n")
    assert list_always_called(tree, "f") - {""} == called


def test_what_cannot_be_imported_is_not_guessed_for() -> None:
    text = "from missing import reduce\n\ndef f(x):\n    n = reduce(x)\n    return x + n\n"
    verdict = verified(text, "x + n", "n + x")
    assert verdict.status is Status.NOT_VERIFIED
    assert "without reduce" in verdict.reason
