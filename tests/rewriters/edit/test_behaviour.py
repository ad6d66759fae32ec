"""The new code computes what the old code computed: both are run on the CPU."""

from __future__ import annotations

import ast
import sys
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs
from rewriting_snippets import HEADER, RULES, assert_same_behaviour, program, sites, written

from npufix.rewriters.find import find_sites
from npufix.rules.substitution import Rewritten, Safety


def npu_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


@pytest.fixture(autouse=True, scope="module")
def torch_npu() -> Any:
    module = ModuleType("torch_npu")
    module.npu_rms_norm = npu_rms_norm  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch_npu", module)
        yield module


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def samples() -> dict[str, Any]:
    """Return arguments for parameters of the examples, by their names."""
    nan, inf = float("nan"), float("inf")
    return {
        "x": torch.randn(3, 4),
        "X": torch.randn(3, 4),
        "grad": torch.tensor([[1.0, nan, -2.0], [inf, 0.0, -inf]]),
        "logit": torch.randn(5, 7).sigmoid(),
        "logits": torch.randn(5, 7),
        "target": torch.randint(0, 7, (5,)),
        "alpha": torch.randn(7),
        "scores": torch.randn(4, 8),
        "bins": torch.randint(0, 6, (4, 3)),
        "valid_lens": torch.randint(0, 9, (3,)),
        "key": torch.randn(2, 3, 4, 5),
        "hidden": torch.randn(2, 3, 4),
        "eps": 0.1,
        "n": 6,
        "groups": 3,
        "input_ids": torch.randint(0, 3, (2, 5)),
        "attention_mask": torch.randint(0, 2, (2, 5)),
        "padding": 1,
        "padding_idx": 1,
        "losses": torch.randn(6),
        "labels": torch.randint(0, 7, (5,)),
        "pred": torch.randn(5, 7),
        "gt": torch.randint(254, 256, (5, 7)),
        "steps": torch.randint(0, 9, (4,)),
        "last": torch.randint(0, 9, (4,)),
        "mask": torch.randint(0, 2, (2, 5)),
    }


def function_of(example: Rewritten) -> ast.FunctionDef | None:
    """Return the function that an example is, ``None`` if it is a module or needs more."""
    definition = ast.parse(example.before).body[0]
    return definition if isinstance(definition, ast.FunctionDef) else None


def can_be_called(example: Rewritten) -> bool:
    """Tell whether the samples suit an example; of other examples only the rule's forms are run."""
    function = function_of(example)
    known = samples()
    if function is None or not known.keys() >= {a.arg for a in function.args.args}:
        return False
    scope: dict[str, Any] = {}
    exec(HEADER + example.before, scope)  # noqa: S102 - our own examples
    try:
        scope[function.name](**{a.arg: known[a.arg] for a in function.args.args})
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    return True


EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in RULES.values()
    for number, example in enumerate(rule.rewritten)
    if not rule.files and "torch_npu" not in example.after and can_be_called(example)
]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_examples_behave_as_before(rule: Any, example: Any) -> None:
    (site,) = find_sites(HEADER + example.before, [rule])
    assert site.rewrite is not None
    function = function_of(example)
    assert function is not None
    known = samples()
    arguments = {a.arg: known[a.arg] for a in function.args.args}
    before, after = HEADER + example.before, site.rewrite.direct
    assert_same_behaviour(before, after, arguments, function.name)


TENSOR = "x: torch.Tensor"
SURPRISES = {
    "NaN and infinity": (
        f"def f({TENSOR}):\n    x[x != x] = 0\n    x[x == float('inf')] = 1\n    return x\n",
        {"x": torch.tensor([1.0, float("nan"), float("inf"), -0.0])},
    ),
    "int tensor": (
        f"def f({TENSOR}):\n    x[x < 2] = 0\n    return x\n",
        {"x": torch.arange(4)},
    ),
    "uint8 tensor": (
        f"def f({TENSOR}):\n    x[x < 2] = 1.0\n    return x\n",
        {"x": torch.arange(4, dtype=torch.uint8)},
    ),
    "bool tensor": (
        f"def f({TENSOR}):\n    x[x == 0] = 1\n    return x\n",
        {"x": torch.tensor([True, False])},
    ),
    "half tensor": (
        f"def f({TENSOR}):\n    x[x < 2] = 0.0\n    return x\n",
        {"x": torch.arange(4).half()},
    ),
    "nothing": (f"def f({TENSOR}):\n    x[x < 2] = 0\n    return x\n", {"x": torch.zeros(0, 3)}),
    "transposed": (
        f"def f({TENSOR}):\n    y = x.t()\n    y[y < 0] = 0\n    return x\n",
        {"x": torch.randn(3, 4)},
    ),
    "an element repeated": (
        f"def f({TENSOR}):\n    y = x.repeat_interleave(2)\n    y[0] = 9\n    return x, y\n",
        {"x": torch.ones(1)},
    ),
    "repeated once": (
        f"def f({TENSOR}, n: int):\n    y = x.repeat_interleave(n)\n    y[0] = 9\n    return x\n",
        {"x": torch.ones(3), "n": 1},
    ),
    "repeated never": (
        f"def f({TENSOR}, n: int):\n    return x.repeat_interleave(n, 1)\n",
        {"x": torch.ones(3, 2), "n": 0},
    ),
    "index of fewer rows": (
        f"def f({TENSOR}, i: torch.Tensor):\n    return x.gather(1, i.view(-1, 1))\n",
        {"x": torch.randn(4, 3), "i": torch.tensor([1, 2])},
    ),
    "duplicates": (
        "def f(i: torch.Tensor):\n    return F.one_hot(i, 4).sum(-2)\n",
        {"i": torch.tensor([[1, 1, 1], [0, 3, 0]])},
    ),
    "int32 bins": (
        "def f(i: torch.Tensor):\n    i = i.long()\n    return F.one_hot(i, 4).sum(dim=-2) / 2\n",
        {"i": torch.tensor([[1, 1, 1]], dtype=torch.int32)},
    ),
    "a bias of another dtype": (
        (
            f"def f({TENSOR}):\n    x = x.view(-1, 3)\n    w = torch.ones(4, 3).bfloat16()\n"
            "    return x @ w.t() + torch.ones(4)\n"
        ),
        {"x": torch.randn(2, 3).bfloat16()},
    ),
    "a weight of three dimensions": (
        (
            f"def f({TENSOR}, w: torch.Tensor):\n    x = x.view(-1, 3)\n"
            "    return x @ w.transpose(0, 1) + torch.ones(2)\n"
        ),
        {"x": torch.randn(2, 3), "w": torch.randn(3, 5, 2)},
    ),
    "a weight of one dimension": (
        (
            f"def f({TENSOR}, w: torch.Tensor):\n    x = x.view(-1, 3)\n"
            "    return F.linear(x, w, torch.ones(1))\n"
        ),
        {"x": torch.randn(2, 3), "w": torch.randn(3)},
    ),
    "a column for each row": (
        (
            f"def f({TENSOR}):\n    x = x.view(-1, 3)\n    w = torch.ones(1, 3)\n"
            "    return F.linear(x, w) + torch.ones(2)\n"
        ),
        {"x": torch.randn(2, 3)},
    ),
}


@pytest.mark.parametrize(("code", "arguments"), SURPRISES.values(), ids=SURPRISES.keys())
def test_safe_means_safe(code: str, arguments: dict[str, Any]) -> None:
    """What the tool calls safe behaves as before, or is not called safe."""
    for site in sites(code):
        if site.safety is Safety.SAFE:
            assert site.rewrite is not None
            assert_same_behaviour(program(code), site.rewrite.direct, arguments)


def arguments() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    floats = {n: torch.randn(3, 4, generator=generator) for n in ("x", "y", "z")}
    return {
        **floats,
        "m": torch.randn(3, 4, generator=generator) > 0,
        "i": torch.randint(0, 3, (3,), generator=generator),
        "w": torch.randn(4, generator=generator),
        "k": torch.randn(4, 4, generator=generator),
        "n": 2,
        "flag": True,
    }


@settings(max_examples=20, derandomize=True)
@given(source=programs())
def test_random_programs_behave_as_before(source: str) -> None:
    text = program(source)
    for site in sites(source):
        if site.rewrite is not None:
            ast.parse(site.rewrite.portable)
            assert_same_behaviour(text, site.rewrite.direct, arguments())
            assert_same_behaviour(text, site.rewrite.portable, arguments())


@settings(max_examples=10, derandomize=True)
@given(source=programs(), order=st.randoms(use_true_random=False))
def test_all_changes_one_after_the_other_behave_as_before(source: str, order: Any) -> None:
    text = program(source)
    rules = list(RULES.values())
    changes = 0
    while found := written(list(find_sites(text, rules))):
        rewrite = order.choice(found).rewrite
        assert rewrite is not None
        text, changes = rewrite.direct, changes + 1
        assert changes < 40, "the changes do not come to an end"
    assert_same_behaviour(program(source), text, arguments())
