"""Changes that keep the meaning: other names, orders and spellings of the same."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from benchmarks.mutations.edits import Edit, is_method, name_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.mutations.edits import Operator, Source

_FUNCTIONS = {"sum", "mean", "softmax", "sigmoid", "tanh", "exp", "rsqrt", "sqrt", "abs", "matmul"}
_TENSORS = (ast.Name, ast.Attribute, ast.Call, ast.BinOp)
OPERATORS: dict[str, Operator] = {}


def _operator(function: Operator) -> Operator:
    OPERATORS[function.__name__] = function
    return function


@_operator
def terms_in_another_order(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        if isinstance(node.left, _TENSORS) and isinstance(node.right, _TENSORS):
            sign = "+" if isinstance(node.op, ast.Add) else "*"
            left, right = source.spell(node.left), source.spell(node.right)
            if "shape" not in left + right and "config" not in left + right:
                yield source.replace(node, f"{right} {sign} {left}")


@_operator
def result_with_a_name(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and node.value is not None:
        yield source.replace(node, f"result_ = {source.spell(node.value)}; return result_")


@_operator
def function_for_method(source: Source, node: ast.AST) -> Iterator[Edit]:
    known = re.search(r"(?m)^import torch$", source.text) is not None
    if name_of(node) in _FUNCTIONS and is_method(node) and isinstance(node, ast.Call) and known:
        owner = source.spell(node.func.value)  # type: ignore[attr-defined] # a method
        if owner not in {"self", "nn.functional"} and not owner.startswith("nn."):
            given = [source.spell(a) for a in node.args]
            given += [f"{w.arg}={source.spell(w.value)}" for w in node.keywords]
            yield source.replace(node, f"torch.{name_of(node)}({', '.join([owner, *given])})")


@_operator
def reshape_for_view(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "view" and is_method(node):
        yield source.replace(node.func, f"{source.spell(node.func.value)}.reshape")  # type: ignore[attr-defined] # a method


@_operator
def cast_in_other_words(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "float" and is_method(node) and isinstance(node, ast.Call):
        yield source.replace(node, f"{source.spell(node.func.value)}.to(torch.float32)")  # type: ignore[attr-defined] # same


@_operator
def operator_for_function(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "matmul" and isinstance(node, ast.Call) and len(node.args) > 1:
        left, right = map(source.spell, node.args[:2])
        yield source.replace(node, f"({left} @ {right})")


@_operator
def square_as_a_product(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "pow" and is_method(node) and isinstance(node, ast.Call):
        owner = node.func.value  # type: ignore[attr-defined] # a method
        if isinstance(owner, ast.Name) and node.args and number_of(node.args[0]) == 2:  # noqa: PLR2004 - a square
            yield source.replace(node, f"({owner.id} * {owner.id})")


@_operator
def root_as_a_power(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "rsqrt" and isinstance(node, ast.Call) and node.args:
        yield source.replace(node, f"(({source.spell(node.args[0])}) ** -0.5)")


@_operator
def silu_spelled_out(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "silu" and isinstance(node, ast.Call) and node.args:
        x = source.spell(node.args[0])
        yield source.replace(node, f"({x} * torch.sigmoid({x}))")


@_operator
def branches_exchanged(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.IfExp):
        test, body, other = map(source.spell, (node.test, node.body, node.orelse))
        yield source.replace(node, f"({other} if not {test} else {body})")


@_operator
def size_for_shape(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        if node.value.attr == "shape" and isinstance(number_of(node.slice), int):
            owner = source.spell(node.value.value)
            yield source.replace(node, f"{owner}.size({source.spell(node.slice)})")


@_operator
def index_for_unsqueeze(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "unsqueeze" and is_method(node) and isinstance(node, ast.Call):
        new = {0: "None", 1: ":, None", -1: "..., None"}.get(int(number_of(node.args[0]) or 0)
                                                            if node.args else 9)  # fmt: skip
        if new is not None and node.args and number_of(node.args[0]) is not None:
            yield source.replace(node, f"{source.spell(node.func.value)}[{new}]")  # type: ignore[attr-defined] # same


@_operator
def minus_as_a_sum(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = source.spell(node.left), source.spell(node.right)
        yield source.replace(node, f"({left} + (-{right}))")


@_operator
def test_in_other_words(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        word = "is not" if isinstance(node.ops[0], ast.Is) else "is"
        left, right = source.spell(node.left), source.spell(node.comparators[0])
        yield source.replace(node, f"(not ({left} {word} {right}))")


@_operator
def sum_written_out(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        if isinstance(node.op, ast.Add) and isinstance(number_of(node.value), int):
            name = node.target.id
            yield source.replace(node, f"{name} = {name} + {source.spell(node.value)}")


@_operator
def local_renamed(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.FunctionDef):
        taken = {word.arg for call in ast.walk(node) for word in getattr(call, "keywords", ())}
        taken |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                if name.id not in taken and "global " not in source.text_at(node):
                    new = re.sub(
                        rf"(?<![.\w\"']){name.id}(?![\w\"'])", "renamed_", source.text_at(node)
                    )
                    yield Edit(*source.span(node), new, name.lineno)


@_operator
def keyword_for_position(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"sum", "mean", "softmax", "cumsum", "argmax", "unsqueeze"}:
        if is_method(node) and isinstance(node, ast.Call) and len(node.args) == 1:
            if isinstance(number_of(node.args[0]), int):
                yield source.replace(node.args[0], f"dim={source.spell(node.args[0])}")


@_operator
def transposed_axes_turned(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "transpose" and is_method(node) and isinstance(node, ast.Call):
        if len(node.args) == 2:  # noqa: PLR2004 - both axes
            first, second = map(source.spell, node.args)
            owner = source.spell(node.func.value)  # type: ignore[attr-defined] # a method
            yield source.replace(node, f"{owner}.transpose({second}, {first})")


@_operator
def comparison_from_the_other_side(source: Source, node: ast.AST) -> Iterator[Edit]:
    other = {ast.Lt: ">", ast.Gt: "<", ast.LtE: ">=", ast.GtE: "<=", ast.Eq: "=="}
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in other:
        left, right = source.spell(node.left), source.spell(node.comparators[0])
        yield source.replace(node, f"({right} {other[type(node.ops[0])]} {left})")


@_operator
def half_for_division_by_two(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if number_of(node.right) == 2:  # noqa: PLR2004 - exact in every type
            yield source.replace(node, f"({source.spell(node.left)} * 0.5)")


@_operator
def power_as_a_product(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if number_of(node.right) == 2 and isinstance(node.left, ast.Name):  # noqa: PLR2004 - a square
            yield source.replace(node, f"({node.left.id} * {node.left.id})")
