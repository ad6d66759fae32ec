"""Which functions a change touches."""

from __future__ import annotations

import pytest

from npufix.advisor.verify.changed_functions import callers, find_touched

BEFORE = '''\
import torch
from torch.nn import functional as F

EPS = 1e-6
UNUSED = 1


def _scaled(x, factor):
    return x * factor


def twice(x):
    """Double."""
    return _scaled(x, 2)


def normed(x):
    return x / (x.norm() + EPS)


class Block(torch.nn.Module):
    slope = 0.1

    def __init__(self, width):
        super().__init__()
        self.width = width

    def _inner(self, x):
        return F.relu(x)

    def forward(self, x):
        if x is not None:
            x = self._inner(x)
        return x


class Config:
    def __init__(self):
        self.width = 4


def made(x):
    return x * Config().width
'''


def change(*edits: tuple[str, str]) -> str:
    text = BEFORE
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        pytest.param([('"""Double."""', '"""Twice."""')], [], id="a docstring"),
        pytest.param([("_scaled(x, 2)", "_scaled(  x, 2)  # so")], [], id="layout and comments"),
        pytest.param([("import torch\n", "import torch\nimport torch_npu\n")], [], id="an import"),
        pytest.param([("return x * factor", "return factor * x")], ["_scaled"], id="a helper"),
        pytest.param(
            [("(x, factor)", "(factor, x)"), ("_scaled(x, 2)", "_scaled(2, x)")],
            ["twice"],
            id="a helper that is called otherwise",
        ),
        pytest.param([("EPS = 1e-6", "EPS = 1e-5")], ["normed"], id="a constant"),
        pytest.param([("UNUSED = 1", "UNUSED = 2")], ["UNUSED"], id="a constant nobody here uses"),
        pytest.param([("self.width = width", "self.w = width")], ["Block.forward"], id="__init__"),
        pytest.param([("slope = 0.1", "slope = 0.2")], ["Block.forward"], id="a class attribute"),
        pytest.param([("F.relu(x)", "x.relu()")], ["Block._inner"], id="a method"),
        pytest.param(
            [("functional as F", "functional_ as F")], ["Block._inner"], id="another module"
        ),
        pytest.param(
            [("self.width = 4", "self.width = 5")], ["made"], id="a class without methods"
        ),
        pytest.param([("def twice", "def double")], ["twice"], id="renamed"),
        pytest.param(
            [("EPS = 1e-6\n", "EPS = 1e-6\nprint(1)\n")], ["the module itself"], id="effect"
        ),
    ],
)
def test_what_is_touched(edits: list[tuple[str, str]], expected: list[str]) -> None:
    assert [t.qualname for t in find_touched(BEFORE, change(*edits))] == expected


def test_only_the_lines_of_changed_statements_must_run() -> None:
    before = (
        "def f(x):\n    a = 1\n    if x:\n        b = (\n            2\n        )\n    return a\n"
    )
    after = "def f(x):\n    a = 1\n    if x:\n        b = 3\n        c = 4\n    return a\n"
    (found,) = find_touched(before, after)
    assert (found.lines_original, found.lines_changed) == ((4,), (4, 5))


def test_code_that_is_only_moved_into_a_branch_need_not_run_again() -> None:
    before = "def f(x):\n    y = x * 2\n    return y\n"
    inner = "    if x.is_npu:\n        y = x + x\n    else:\n        y = x * 2\n"
    after = f"def f(x):\n{inner}    return y\n"
    (found,) = find_touched(before, after)
    assert (found.lines_original, found.lines_changed) == ((), (2, 3))


def test_what_a_call_does_not_run_is_not_verified() -> None:
    text = "async def f(x):\n    return {}\n"
    (found,) = find_touched(text.format("x"), text.format("x + 0"))
    assert "does not run" in found.reason


def test_the_callers_of_a_function_are_those_that_name_it() -> None:
    assert callers(BEFORE, BEFORE, "_scaled") == ["twice"]
    assert callers(BEFORE, BEFORE, "Block._inner") == ["Block.forward"]


def test_a_handler_that_changes_has_to_run_itself() -> None:
    before = (
        "def f(model, x):\n    try:\n        return model(x)\n"
        "    except RuntimeError:\n        return x\n"
    )
    (found,) = find_touched(before, before.replace("RuntimeError", "Exception"))
    assert (found.lines_original, found.lines_changed) == ((4,), (4,))
    before = (
        "def f(kind, x):\n    match kind:\n        case 'a':\n            return x\n    return 1\n"
    )
    (found,) = find_touched(before, before.replace("'a'", "'b'"))
    assert found.lines_original == (3,)
