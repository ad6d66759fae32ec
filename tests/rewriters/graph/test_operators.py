"""The one table of operators: every spelling of a call is one node, and rules need no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import ModuleNames
from npufix.rewriters.graph.operators import TABLE, find_missing
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import RULE_IMPORTS, pattern_of
from npufix.rules.registry import all_rules

ROOT = Path(__file__).parents[3]
ROWS = (ROOT / "rewriters/graph/operators.txt").read_text(encoding="utf-8").splitlines()
PATTERNS = [form.pattern for rule in all_rules() if not rule.search for form in rule.forms]


def value(expression: str) -> object:
    """Return what a function of ``x``, ``y`` and ``z`` returns, as a term."""
    function = ast.parse(f"def f(x, y, z):\n    return {expression}").body[0]
    assert isinstance(function, ast.FunctionDef)
    flow = read_function(function, ModuleNames(RULE_IMPORTS, {}, {}))
    assert [seen.kind for seen in flow.observables if seen.kind != "random"] == ["return"]
    return repr(flow.observables[-1].node)


@pytest.mark.parametrize(
    "spellings",
    [
        ("F.relu6(x + 3)", "F.relu6(x + 3, inplace=False)", "F.relu6(input=x + 3)"),
        ("torch.hypot(x, y)", "x.hypot(y)", "torch.hypot(input=x, other=y)", "x.hypot(other=y)"),
        ("torch.logaddexp(x, y)", "x.logaddexp(y)"),
        ("F.softplus(x)", "F.softplus(x, 1, 20)", "F.softplus(x, beta=1)"),
        ("torch.lerp(x, y, 0.5)", "x.lerp(y, 0.5)", "x.lerp(end=y, weight=0.5)"),
        ("x.addcmul(y, z)", "torch.addcmul(x, y, z, value=1)", "x.addcmul(y, z, value=1)"),
        ("F.pixel_shuffle(x, 2)", "torch.pixel_shuffle(input=x, upscale_factor=2)"),
        ("x.flip(1)", "torch.flip(x, [1])", "x.flip((1,))", "x.flip(dims=[1])"),
        ("x.view(2, -1)", "x.view((2, -1))", "x.view([2, -1])"),
        ("x.reshape(2, -1)", "torch.reshape(x, (2, -1))", "x.reshape(shape=[2, -1])"),
        ("x.reshape(*y, -1)", "x.reshape((*y, -1))"),
        ("x.permute(0, 2, 1)", "torch.permute(x, dims=(0, 2, 1))", "x.permute([0, 2, 1])"),
        ("x.transpose(dim0=-1, dim1=-2)", "x.transpose(-2, -1)"),
        ("x.transpose(-1, -2)", "x.swapaxes(-2, -1)", "torch.transpose(x, -2, -1)", "x.mT"),
        ("x[:, None]", "x[:, None, ...]", "x.unsqueeze(1)"),
        ("x.size(-1)", "x.size(dim=-1)", "x.shape[-1]"),
        ("x.mean((1, 2))", "x.mean([1, 2])", "torch.mean(x, dim=(1, 2))"),
        ("x.var(-1, False, True)", "torch.var(x, dim=-1, keepdim=True, correction=0)"),
        ("x.max(-1)[0]", "torch.max(x, dim=-1).values", "x.max(axis=-1)[0]"),
        ("x.clamp_min(1)", "x.clip(1)", "torch.clamp(x, min=1)"),
        ("x.norm(dim=-1)", "x.norm(2, -1)", "torch.norm(x, p=2.0, dim=-1)"),
        ("torch.where(x)[0]", "x.nonzero(as_tuple=True)[0]"),
        ("torch.argwhere(x)", "x.nonzero()"),
        ("x ** (-1 / 2)", "x.rsqrt()"),
        (f"x + 1{'0' * 400} / 3", f"x + (1{'0' * 400} / 3)"),  # no float holds it
        ("x.amax(-1)", "torch.amax(x, dim=-1)", "x.amax(axis=(-1,), keepdims=False)"),
        ("torch.clip(x, 0)", "x.clamp(min=0)", "x.clamp(0, None)"),
        ("x >= y", "x.greater_equal(y)", "torch.ge(x, y)"),
        ("x // y", "torch.floor_divide(x, y)"),
        ("torch.special.expit(x)", "x.sigmoid()"),
        ("torch.linalg.inv(x)", "torch.inverse(x)"),
        ("torch.searchsorted(x, y)", "torch.searchsorted(x, input=y)"),
        (
            "F.scaled_dot_product_attention(x, y, z)",
            "F.scaled_dot_product_attention(query=x, key=y, value=z)",
        ),
    ],
    ids=lambda spellings: spellings[0],
)  # fmt: skip
def test_all_spellings_are_one_node(spellings: tuple[str, ...]) -> None:
    assert len(set(map(value, spellings))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("torch.linalg.norm(x)", "torch.norm(x)"),
        ("torch.linalg.diagonal(x)", "torch.diagonal(x)"),
        ("F.unfold(x, 2, 1, 1)", "x.unfold(2, 1, 1)"),
        ("torch.embedding(x, y)", "F.embedding(x, y)"),
        ("x.flip(0)", "x.flip(1)"),
        ("x.view(y)", "x.view(y, y)"),
        ("x.view((y, z))", "x.view((z, y))"),
        ("x.transpose(1, -1)", "x.transpose(1, -2)"),
        ("x.transpose(y, z)", "x.transpose(z, y)"),
        ("x[:, None, ...]", "x[..., None]"),
        ("x.var(-1)", "x.var(-1, correction=0)"),
        ("x.max(y)", "x.max(-1)"),
        ("x.max(-1)[0]", "x.max(-1, True)[0]"),
        ("x.norm(2)", "x.norm(1)"),
        ("x.clamp_min(1)", "x.clamp_max(1)"),
        ("torch.where(x)[0]", "torch.where(x, y, z)[0]"),
        ("F.hardtanh(x)", "F.hardtanh(x, 0.0)"),
    ],
)
def test_functions_of_one_name_stay_apart(one: str, other: str) -> None:
    assert value(one) != value(other)


@pytest.mark.parametrize("call", ["F.relu6(x, True)", "F.hardtanh(x, -1, 1, True)", "x.relu_()"])
def test_a_call_in_place_is_a_write(call: str) -> None:
    function = ast.parse(f"def f(x):\n    return {call}").body[0]
    assert isinstance(function, ast.FunctionDef)
    flow = read_function(function, ModuleNames(RULE_IMPORTS, {}, {}))
    assert [seen.kind for seen in flow.observables] == ["write", "return"]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: f"{p.__module__[24:]}-{p.__name__}")
def test_every_operator_of_a_pattern_has_a_row(pattern: object) -> None:
    missing = find_missing(pattern_of(pattern).root)  # type: ignore[arg-type]  # a pattern
    assert not missing, "add to rewriters/graph/operators.txt:\n" + "\n".join(missing)


def test_a_missing_row_is_suggested() -> None:
    function = ast.parse("def f(x, y):\n    return torch.brand_new(x, y) + x.brand_newer(y)").body[
        0
    ]
    assert isinstance(function, ast.FunctionDef)
    flow = read_function(function, ModuleNames(RULE_IMPORTS, {}, {}))
    assert find_missing(flow.observables[-1].node) == [
        "brand_new(input, other1)",
        "brand_newer(input, other1)  method",
    ]


def test_the_rows_are_sorted_and_say_what_the_head_explains() -> None:
    head = " ".join(line for line in ROWS if line.startswith("#"))
    rows = [line for line in ROWS if line and not line.startswith("#")]
    assert rows == sorted(rows)
    assert len(rows) == len(TABLE)
    for row in TABLE.values():
        operators.parameters(row.name)
        for word in row.words:
            assert re.search(rf"\b{word.partition('=')[0]}\b", head), (row.name, word)


def test_a_row_is_about_something_that_torch_has() -> None:
    import torch

    python = {"floordiv", "mod", "invert", "lshift", "rshift", "pos", "npu", "data", "grad"}
    for name in TABLE.keys() - python:
        module, _, last = name.rpartition(".")
        functions = torch.nn.functional
        homes = {"": [torch, torch.Tensor, functions], "torch": [torch], "functional": [functions]}
        owners = homes.get(module) or [getattr(torch, module)]
        found = any(hasattr(owner, n) for owner in owners for n in (last, f"__{last}__"))
        assert found, name


def test_an_outer_product_is_no_name_from_outside() -> None:
    assert str(value("torch.outer(x, y)")).startswith("outer(")
    assert Op.OUTSIDE not in TABLE


def _ops_in(code: ast.AST) -> list[str]:
    """Return the texts that a piece of code makes nodes of or compares their ``op`` with."""
    match code:
        case ast.Call(ast.Attribute(_, "node" | "op" | "about"), [ast.Constant(str(op)), *_]):
            return [op]
        case ast.Compare(ast.Attribute(_, "op"), _, [right]):
            return [n.value for n in ast.walk(right) if isinstance(n, ast.Constant)]
        case ast.Match(ast.Attribute(_, "op"), cases):
            values = [
                n.value for c in cases for n in ast.walk(c.pattern) if isinstance(n, ast.MatchValue)
            ]
            return [v.value for v in values if isinstance(v, ast.Constant)]
    return []


@pytest.mark.parametrize("path", sorted(ROOT.glob("rewriters/*/*.py")), ids=lambda path: path.stem)
def test_no_other_special_node_is_made_or_asked_for(path: Path) -> None:
    for code in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for op in _ops_in(code):
            known = op.removesuffix("(*)") in TABLE or op.startswith("py:") or "." in op
            assert known or op == "numpy", f"{op}: use Op of special.py"
