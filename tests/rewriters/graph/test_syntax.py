"""Walking, copying and outlining source text, against what ``ast`` says: on our own files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npufix.rewriters.graph.modules.names import FunctionNode, inlinable, module_names
from npufix.rewriters.graph.modules.outline import only_computes, outline
from npufix.rewriters.graph.modules.syntax import copy_tree, walk

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("rewriters/*/*.py"), *ROOT.glob("rules/**/*.py")])
SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


@pytest.fixture(params=FILES[::6], ids=lambda path: path.stem)
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param.read_text(encoding="utf-8"))


def test_a_walk_meets_every_node(text: str) -> None:
    tree = ast.parse(text)
    met = {id(node) for node in walk(tree)}
    assert met == {id(node) for node in ast.walk(tree) if not isinstance(node, SIGNS)}


def test_a_copy_is_equal_and_shares_nothing_that_can_change(text: str) -> None:
    tree = ast.parse(text)
    new = copy_tree(tree)
    assert ast.dump(new, include_attributes=True) == ast.dump(tree, include_attributes=True)
    assert not {id(node) for node in walk(tree)} & {id(node) for node in walk(new)}


def test_an_outline_holds_what_may_be_inlined(text: str) -> None:
    names = module_names(ast.parse(text))
    found = outline(text)
    for name, function in names.functions.items():
        if isinstance(function, ast.FunctionDef) and not function.decorator_list:
            wanted = ast.get_source_segment(text, function)
            assert wanted is not None
            assert wanted in found.functions[name]
            assert only_computes(found.functions[name]) or not inlinable(function)
    relative = {n: full for n, full in {**names.imports, **names.relative}.items() if "." in full}
    assert relative.items() <= found.imports.items() | _plain_imports(text).items()


def _plain_imports(text: str) -> dict[str, str]:
    return {
        alias.asname: alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }


TRICKY = {
    "a comprehension over lines": "y = [\n        z\n        for z in x\n    ]\n    return y",
    "a docstring that talks": '"""Take it\n    for granted.\n    """\n    return x',
    "brackets over lines": "y = (\n    x\n)\n    return y",
    "a comment in the first column": "y = x\n# as is\n    return y",
}


@pytest.mark.parametrize("body", TRICKY.values(), ids=TRICKY.keys())
def test_the_whole_function_is_found(body: str) -> None:
    text = f"import torch\n\ndef f(\n    x,\n) -> None:\n    {body}\n\nclass A:\n    pass\n"
    (function,) = (n for n in ast.parse(text).body if isinstance(n, FunctionNode))
    assert inlinable(function)
    code = outline(text).functions["f"]
    assert code.rstrip() == (ast.get_source_segment(text, function) or "").rstrip()
    assert only_computes(code)


@pytest.mark.parametrize(
    "effect", ["for y in x:\n        z = y", "raise E", "with x: pass", "import y"]
)
def test_a_function_that_does_more_is_not_parsed_for(effect: str) -> None:
    text = f"def f(x):\n    {effect}\n    return x\n"
    assert not only_computes(outline(text).functions["f"])


def test_a_decorated_function_is_left_out() -> None:
    made = "class A:\n    @late\n    def __init__(self):\n        pass\n"
    text = f"@cache\ndef f(x):\n    return x\n\n{made}"
    assert list(outline(text).functions) == ["__init__"]
