"""Calls that show something: positive steps, objects of images, layers as wide as what they get."""

from __future__ import annotations

import ast
import math

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.inputs.search_result import SearchResult, vary_refused
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.path_conditions import solve_path_condition
from npufix.rewriters.verification.verdict import Status

SAMPLER = """
def sample(model, x, sigmas):
    last = None
    for i in range(len(sigmas) - 1):
        made = model(x, sigmas[i])
        t, then = sigmas[i].log(), sigmas[i + 1].log()
        if last is None:
            x = x - (t - then) * made
        else:
            r = (sigmas[i - 1].log() - t) / (t - then)
            x = x - (t - then) * (made + (made - last) / (2 * r))
        last = made
    return x
"""
LOST = """
def f(x: torch.Tensor):
    if x.shape[0] > 2:
        return (-x.abs() - 1).log() * 2
    return x * 2
"""
BANK = """
class Bank(torch.nn.Module):
    def __init__(self, size: int = 0):
        super().__init__()
        self.size = size
        self.register_buffer("at", torch.empty(1, dtype=torch.long))
        if size:
            self.at.zero_()

    def forward(self, x):
        return x * x
"""
JOINED = """
class Joined(torch.nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.proj = torch.nn.Linear(in_dim, out_dim)

    def forward(self, x, y):
        return self.proj(torch.cat([x, y, x - y], -1)).relu()
"""
MATCHED = """
from torch import Tensor

def boxes(outputs: dict[str, Tensor], targets: list[dict[str, Tensor]],
          indices: list[tuple[Tensor, Tensor]]):
    batch = torch.cat([torch.full_like(s, i) for i, (s, _) in enumerate(indices)])
    found = outputs["pred_boxes"][batch, torch.cat([s for s, _ in indices])]
    wanted = torch.cat([t["boxes"][i] for t, (_, i) in zip(targets, indices)])
    return (found - wanted).abs().sum(-1)
"""
BESIDE = """
def error(preds, targets):
    assert preds.dim() == 3 and targets.dim() == 3
    return (preds.unsqueeze(2) * targets.unsqueeze(1)).sum(-1)
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (SAMPLER, "(2 * r))", "(2 / r))", Status.REFUTED),
        (LOST, "* 2\n    return x", "* 3\n    return x", Status.NOT_VERIFIED),
        (BANK, "x * x", "x.square()", Status.EQUIVALENT),
        (JOINED, "x - y", "y - x", Status.REFUTED),
        (MATCHED, "targets, indices)", "targets[1:], indices[1:])", Status.REFUTED),
        (MATCHED, "(found - wanted).abs()", "(wanted - found).abs()", Status.EQUIVALENT),
        (
            BESIDE,
            "(preds.unsqueeze(2) * targets.unsqueeze(1)).sum(-1)",
            "torch.matmul(preds, targets.mT)",
            Status.EQUIVALENT,
        ),
    ],
)
def test_calls_tell_right_from_wrong(text: str, old: str, new: str, status: Status) -> None:
    """What makes nothing but NaN, memory of chance and mixed dtypes decide nothing."""
    assert verdict(text, (old, new)).status is status


@pytest.mark.parametrize(
    ("error", "widths"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (6x24 and 8x4)", [(8, 24)]),
        (
            "expected input[2, 6, 3] to have 8 channels, but got 6 channels",
            [(8, 6)],
        ),
        ("expected input with shape [*, 8], but got input of size[2, 3, 4]", [(8, 4)]),
        ("was expecting embedding dimension of 8, but got 16", [(8, 16)]),
        ("index 9 is out of bounds", []),
    ],
)
def test_layers_say_what_they_were_given(error: str, widths: list[tuple[int, int]]) -> None:
    """Then the object is made so that they take it."""
    found = SearchResult()
    found.note(f"RuntimeError: {error}", "Net")
    assert found.list_widths() == widths
    for taken, given in widths:
        made = list(vary_refused(found, Net, {"dim": taken, "hidden": (taken, 4), "on": True}))
        assert [str(s) for one in made for s in one.values()] == [str(given), f"({given}, 4)"]


class Net:
    """Has a part only where it is made with the width of that."""

    def __init__(self, width: int, context_features: int | None = None) -> None:
        """Make it."""
        self.width = width
        if context_features is not None:
            self.context_layer = [width] * context_features


@pytest.mark.parametrize(("missed", "found"), [("context_layer", ["8"]), ("other", [])])
def test_an_object_is_made_with_what_calls_have_missed(missed: str, found: list[str]) -> None:
    seen = SearchResult()
    seen.note(f"AttributeError: 'Net' object has no attribute '{missed}'", "Net")
    settings = {"width": 8, "context_features": None}
    made = list(vary_refused(seen, Net, settings))
    assert [str(one["context_features"]) for one in made] == found


def test_a_count_that_is_not_zero_is_more_than_one() -> None:
    """By one, nothing is repeated."""
    text = "def f(self, x):\n    if self.num_parts == 0 or x.at > 0:\n        return x\n    y = x\n"
    assert solve_path_condition(ast.parse(text), 4) == {"self.num_parts": 2, "x.at": 0}


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        (">>> targets = torch.randn(10, 2)", {"float"}),
        (">>> targets = torch.randint(0, 3, (10,))", {"int"}),
        (">>> targets = torch.rand(10, 2) > 0.5", set()),
        (">>> targets = torch.randn(3).long()", set()),
        (">>> other_targets = torch.randn(10, 2)", set()),
        ("Args:\n        targets (Tensor): probabilities of classes", {"float"}),
        ("Args:\n        targets (Tensor): which to mask in predictions", set()),
    ],
)
def test_examples_and_prose_tell_floats(said: str, kinds: set[str]) -> None:
    """A name alone, ``targets``, suggests whole numbers."""
    text = f'def loss(preds, targets):\n    """Compare.\n\n    {said}\n    """\n    return preds\n'
    assert read_declarations(text, "loss").of("targets").kinds == kinds


HELPED = """
def halves(x, y):
    b, n, c = x.shape
    return x[..., : c // 2] + y

def one(x):
    b, c = x.shape
    return x

def f(x, y, z):
    z = z + 1
    h = halves(x, y=y)
    h = h @ y.T
    if n:
        return one(y)
    return halves(z, x)
"""


def test_what_a_helper_unpacks_has_as_many_dimensions() -> None:
    """But for what has changed before, or is handed on below a test."""
    declared = read_declarations(HELPED, "f")
    assert [declared.of(n).use.dims for n in "xyz"] == [{3}, {2}, set()]


def test_what_no_tensor_has_ends_a_search() -> None:
    """``gt.bboxes`` of whatever tensor it is: twelve thousand of them took six seconds."""
    missing = "AttributeError: 'Tensor' object has no attribute 'bboxes'"
    for others in ([], ["IndexError: index 2 is out of bounds"]):
        found = SearchResult()
        for error in [missing] * 999 + [*others, missing]:
            found.note(error, "Head")
        assert found.ends(math.inf) is not bool(others)


def test_a_layer_that_takes_no_mask_is_not_given_one_for_long() -> None:
    found = SearchResult()
    for _ in range(100):
        assert not found.ends(math.inf)
        found.note("TypeError: Linear.forward() got an unexpected keyword argument 'mask'", "Norm")
    assert found.ends(math.inf)
    assert not found.ends(math.inf), "of another object it is asked anew"
