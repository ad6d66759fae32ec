"""Labels that losses ignore, axes that are settings, and what docstrings say of both."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified

from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.parameters import Parameter, guess_scalars
from npufix.rewriters.verification.inputs.source.shapes import read_text
from npufix.rewriters.verification.inputs.source.texts.types import read_types
from npufix.rewriters.verification.inputs.source.training.losses import find_void_numbers
from npufix.rewriters.verification.inputs.source.usage import find_function

COMPARED = """
import torch
import torch.nn.functional as F

def loss(logits, labels):
    keep = labels != -1
    named = labels.clamp(min=0).unsqueeze(-1)
    picked = F.log_softmax(logits, -1).gather(-1, named).squeeze(-1)
    return -(picked * keep).sum() / keep.sum().clamp(min=1)
"""
SETTING = """
import torch
import torch.nn.functional as F

class Loss(torch.nn.Module):
    def __init__(self, num_classes, ignore_index=255, weight=None):
        super().__init__()
        self.num_classes, self.ignore_index, self.weight = num_classes, ignore_index, weight

    def forward(self, logits, target):
        valid = target != self.ignore_index
        hot = F.one_hot(target * valid, self.num_classes)
        loss = F.cross_entropy(logits, target * valid, weight=self.weight, reduction="none")
        return (loss * valid).sum() / valid.sum().clamp(min=1) + 0 * hot.sum()
"""
OPTIONAL = '''
from typing import Optional

import torch

def count(preds: torch.Tensor, target: torch.Tensor, ignore_index: Optional[int] = None):
    """preds: Scores (batch_size, seq_len, vocab_size).
    target: Labels (batch_size, seq_len).
    ignore_index: Integer that says which class counts for nothing.
    """
    keep = target != ignore_index if ignore_index is not None else torch.ones_like(target).bool()
    return preds.sum(-1)[keep].sum(), keep.sum()
'''
ODD = """
def f(a, b):
    d = a.shape[-1]
    if d % 2 and (d > 9 or len(a) == len(b)):
        raise ValueError(d)
    return a.sum() + b.sum() * (d & 1)
"""
HALVES = """
import torch

def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.float16:
        return (a.float() @ b.T.float()).half()
    return a @ b.T
"""
OVERLAP = '''
import torch

def f(input, target):
    """Args:
        input: predicted bounding boxes, Nx4 or Nx6 torch tensor
        target: true bounding boxes, Nx4 or Nx6 torch tensor
    """
    if input.shape[-1] not in (4, 6):
        raise ValueError("boxes are of 4 or 6 numbers")
    half = input.shape[-1] // 2
    if (input[:, half:] < input[:, :half]).any():
        raise ValueError("corners are in order")
    top = torch.max(input[:, :half], target[:, :half])
    return (torch.min(input[:, half:], target[:, half:]) - top).clamp(min=0).prod(-1)
'''
SIMILAR = """
import torch
import torch.nn.functional as F

class Similar(torch.nn.Module):
    def __init__(self, dim: int = 1, eps: float = 1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x0: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
        return -F.cosine_similarity(x0, x1, self.dim, self.eps).mean()
"""
MEAN = """
import math
import torch

def f(X: torch.Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> torch.Tensor:
    n = X.shape[dim] if isinstance(dim, int) else math.prod(X.shape[i] for i in dim)
    return torch.logsumexp(X, dim=dim, keepdim=keepdim) - math.log(n)
"""
LENGTHS = """
import torch

def f(data, length=None, len_dim=1):
    mask = torch.ones_like(data)
    if length is not None:
        most = data.shape[len_dim]
        kept = torch.arange(most)[None] < (length * most)[:, None]
        while kept.dim() < mask.dim():
            kept = kept.unsqueeze(-1)
        mask *= kept.transpose(1, len_dim)
    return mask
"""
OPTIONS = """
import torch

def f(x, keep_mask=None, add_one=True, dim=1):
    if keep_mask is not None:
        x = x.masked_fill(~keep_mask, torch.finfo(x.dtype).min)
    if add_one:
        x = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
    found = torch.logsumexp(x, dim, keepdim=True)
    if keep_mask is not None:
        found = found.masked_fill(~keep_mask.any(dim, keepdim=True), 0)
    return found
"""
SCALES = """
import torch

def f(x: torch.Tensor, multiplier: float, amin: float, top: float | None = None):
    y = multiplier * x.clamp(min=amin).log10()
    if top is not None:
        shape = y.shape
        y = y.reshape(-1, shape[-3] if y.dim() > 2 else 1, *shape[-2:])
        y = torch.max(y, (y.amax((-3, -2, -1)) - top).view(-1, 1, 1, 1)).reshape(shape)
    return y
"""
TYPED = r'''
import torch

def f(embedding, index):
    r"""Embed.

    Args:
        embedding (torch.Tensor): What is drawn to.
        index (torch.Tensor): Where; its shape is :math:`(batch, bins\_of)`.
    """
    embedding = embedding * 2
    return torch.cat([embedding, embedding], -1), index
'''
NEEDS = """
import torch

class Needs(torch.nn.Module):
    def __init__(self, table):
        super().__init__()
        if not isinstance(table, dict) or "rows" not in table:
            raise TypeError("a table with rows is needed")

    def forward(self, x):
        return x * self.rows.shown()
"""


COUNTED = """
import torch

def place(x: torch.Tensor, at: torch.Tensor | None = None):
    rows = [torch.zeros(1) if at is None else at[n] for n in range(len(x))]
    return torch.stack(rows)
"""
DESCRIBED = """
import torch
from scalers import Scaler

def scale(x: torch.Tensor, unit: Scaler):
    assert isinstance(unit.way, str) and unit.way in ["log", "log1p"], unit.other
    return (x - unit.mean) / unit.spread
"""


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (COMPARED, "(picked * keep).sum()", "picked.sum()"),
        (COMPARED, "keep.sum().clamp(min=1)", "keep.sum()"),  # where all are ignored
        (SETTING, "(loss * valid).sum() / ", "loss.sum() / "),
        (OPTIONAL, ".sum(), keep.sum()", ".sum(), torch.tensor(target.numel())"),
        (ODD, "b.sum() * (d & 1)", "b.sum() * 0"),
        (SIMILAR, "self.dim, self.eps)", "eps=self.eps)"),
        (HALVES, "(a.float() @ b.T.float()).half()", "a.float() @ b.T.float()"),
        (OVERLAP, ".clamp(min=0)", ".abs()"),
        (MEAN, "math.prod(X.shape[i] for i in dim)", "X.shape[dim[0]]"),
        (LENGTHS, ".transpose(1, len_dim)", ""),
        (OPTIONS, "found.masked_fill(~keep_mask.any(dim, keepdim=True), 0)", "found"),
        (COUNTED, "at[n]", "at[0]"),
        (DESCRIBED, "mean) / unit.spread", "spread) / unit.mean"),
        (SCALES, "(y.amax((-3, -2, -1)) - top).view(-1, 1, 1, 1)", "y.max() - top"),
    ],
)
def test_a_wrong_change_is_refuted(text: str, old: str, new: str) -> None:
    assert verified(text, old, new).status.name == "REFUTED"


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (COMPARED, "-(picked * keep).sum()", "-picked[keep].sum()"),
        (SETTING, "(loss * valid).sum() / ", "loss[valid].sum() / "),
        (OPTIONAL, "keep.sum()", "keep.long().sum()"),
        (ODD, "b.sum() * (d & 1)", "(d & 1) * b.sum()"),
        (SIMILAR, "self.dim, self.eps)", "eps=self.eps, dim=self.dim)"),
        (HALVES, "(a.float() @ b.T.float()).half()", "(a.float() @ b.float().T).to(a.dtype)"),
        (OVERLAP, ".clamp(min=0)", ".clamp_min(0)"),
        (MEAN, "math.log(n)", "math.log2(n) * math.log(2)"),
        (LENGTHS, "mask *= kept", "mask = mask * kept"),
        (DESCRIBED, "(x - unit.mean) / unit.spread", "x.sub(unit.mean).div(unit.spread)"),
        (OPTIONS, "~keep_mask.any(dim, keepdim=True)", "(~keep_mask).all(dim, keepdim=True)"),
        (TYPED, "torch.cat([embedding, embedding], -1)",
         "torch.cat((embedding,) * 2, dim=-1)"),
    ],
)  # fmt: skip
def test_a_right_one_is_proven(text: str, old: str, new: str) -> None:
    found = verified(text, old, new)
    assert found.status.name == "EQUIVALENT", found.reason


def test_a_number_is_no_tensor_because_a_text_says_so() -> None:
    text = TYPED.replace("* 2", "* 2.0")
    found = verified(text, "[embedding, embedding]", "[embedding, embedding][:1]")
    assert found.status.name == "REFUTED"
    assert "embedding=float" in found.reason


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("labels != -1", {-1}),
        ("labels.view(-1).ne(-100)", {-100}),
        ("labels[:, 0] >= 0", {-1}),
        ("labels == 255", {255}),
        ("labels.shape[0] == -1", set()),
        ("labels > 0", set()),
        ("other == -1", set()),
    ],
)
def test_numbers_that_are_no_class(line: str, numbers: set[int]) -> None:
    import ast

    function = find_function(ast.parse(f"def f(labels, other):\n    return {line}\n"), "f")
    assert function is not None
    assert find_void_numbers(function, "labels") == numbers


def test_alternative_shapes_and_keywords_in_docstrings() -> None:
    text = "x: ``(freq, time)``, ``(c, freq, time)`` or ``(..., b, c, freq, time)``"
    assert read_text(text, ["x"])["x"].shapes == (
        ("freq", "time"),
        ("c", "freq", "time"),
        ("...", "b", "c", "freq", "time"),
    )
    assert read_text("x: boxes, Nx4 or Nx6 tensor", ["x"])["x"].shapes == (("N", "4"), ("N", "6"))
    assert not read_text("x: a 0x1F number", ["x"])["x"].shapes
    assert read_text("x: (B, T), (B, S)", ["x"])["x"].shapes == (("B", "T"),)
    assert verified(
        '''
        def f(x, weight):
            """x: (n, in); weight: (out, in)"""
            return x @ weight.t()
        ''',
        "x @ weight.t()",
        "(weight @ x.t()).t().contiguous()",
    ).status.name == "EQUIVALENT"  # fmt: skip


def test_types_in_docstrings() -> None:
    google = "Args:\n  x (:class:`torch.Tensor`): a\n  n (int, optional): b\n  z (dict): c\n"
    assert read_types(google, ["x", "n", "z"]) == {"x": "Tensor", "n": "Optional[int]"}
    numpy = "Arguments\n---------\nx : torch.LongTensor\n    a\nflag : bool\n"
    assert read_types(numpy, ["x", "flag"]) == {"x": "LongTensor", "flag": "bool"}
    assert read_types(":type xs: list of Tensors", ["xs"]) == {"xs": "list[Tensor]"}


def test_an_axis_is_no_width() -> None:
    found = [getattr(s, "value", None) for s in guess_scalars(Parameter("len_dim", "", 1))]
    assert found[:2] == [-1, 2]
    assert [getattr(s, "value", None) for s in guess_scalars(Parameter("dim", "", 512))][0] == 8  # noqa: RUF015 - the likeliest


def test_what_was_computed_is_no_width() -> None:
    empty = inspect.Parameter.empty
    tensors = ("hidden_states", "inputs_embeds", "position_embeddings", "time_emb", "topk_scores")
    assert not any(guess_scalars(Parameter(name, "", empty)) for name in tensors)
    widths = ("hidden", "num_embeddings", "hidden_size", "embed_dim")
    assert all(guess_scalars(Parameter(name, "", empty)) for name in widths)


def test_an_action_is_no_activation() -> None:
    empty = inspect.Parameter.empty
    tensors = ("action", "next_actions", "contacts", "character")
    assert not any(guess_scalars(Parameter(name, "", empty)) for name in tensors)
    texts = ("act_fn", "hidden_act", "activation", "act", "activation_fn", "act_layer")
    assert all(guess_scalars(Parameter(name, "", empty)) for name in texts)


def test_the_reason_names_what_the_constructor_raised() -> None:
    found = verified(NEEDS, "x * self.rows.shown()", "self.rows.shown() * x")
    assert found.status.name == "NOT_VERIFIED"
    assert "no object of its class can be made: TypeError: a table with rows" in found.reason


CALLED = '''
import torch

class Base:
    def score(self, x, y):
        """Args:
            x: features (batch, width)
            y: others (count, width)
        """

class Loss(Base):
    def forward(self, out, other, mask, shown=False):
        """Args:
            out: projections (n, views, d)
            other: the same (n, views, d)
            mask: what counts (n,)
            shown (bool): whether to print
        """
        mask = mask.float()
        return self._loss(out, other=other, mask=mask)

    def _loss(self, out, other, mask):
        return ((out - other).sum((1, 2)) * mask).sum()

    def score(self, x, y):
        return x @ y.T
'''


def test_a_helper_takes_what_its_caller_takes() -> None:
    said = read_declarations(CALLED, "Loss._loss")
    assert said.of("out").shapes == said.of("other").shapes == (("n", "views", "d"),)
    assert not said.of("mask").kinds
    assert not said.of("mask").shapes  # another than the one that was given
    assert read_declarations(CALLED, "Loss.score").of("y").shapes == (("count", "width"),)


WRITTEN_OUT = """
import torch
from torch import nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        x = (x - u) / torch.sqrt((x - u).pow(2).mean(1, keepdim=True) + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]
"""


def test_a_module_is_called_with_the_channels_that_it_was_made_for() -> None:
    # One channel broadcasts against the weights of sixteen, but no caller has it.
    start = WRITTEN_OUT.index("        u = x.mean")
    fused = (
        "        x = x.permute(0, 2, 3, 1)\n"
        "        x = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)\n"
        "        return x.permute(0, 3, 1, 2)\n"
    )
    found = verified(WRITTEN_OUT, WRITTEN_OUT[start:], fused)
    assert found.status.name == "EQUIVALENT", found.reason


FOCAL = """
import torch
import torch.nn.functional as F

def focal(logits, targets, gamma: float = 2.0):
    \"\"\"logits (N, C), targets (N, C) of zeros and ones.\"\"\"
    cost = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    other = (logits.sigmoid() - targets).abs()
    return (other**gamma * cost).sum() / targets.sum().clamp(min=1)
"""


def test_targets_of_zeros_and_ones_are_all_zeros_too() -> None:
    assert verified(FOCAL, "min=1)", "min=1e-6)").status.name == "REFUTED"


def test_what_says_where_is_of_whole_numbers() -> None:
    text = '''
def pool(x, batch, out, where):
    """x: Tensor of shape (batch, nfilters, nframes)"""
    return out.index_add(0, batch, x), torch.gather(x, 1, index=where)
'''
    found = read_declarations(text, "pool")
    kinds = {name: (one.kinds, one.use.dims) for name, one in found.arguments.items()}
    assert kinds["batch"] == ({"int"}, {1})
    assert kinds["where"] == ({"int"}, set())
    assert kinds["x"] == kinds["out"] == (frozenset(), set())
    assert found.list_shapes("x", 8) == [(2, 8, 3)]  # filters are what a layer takes
    passed = f"{text}\ndef spread(x, each, out):\n    return pool(x, each, out, None)[0][each]\n"
    assert read_declarations(passed, "spread").arguments["each"].kinds == {"int"}
