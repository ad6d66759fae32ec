"""Wrong changes of the kinds that people make when they move code to another operator."""

from __future__ import annotations

import ast
import itertools
import re
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.mutations.edits import Edit, is_method, name_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.mutations.edits import Operator, Source

_REDUCING = {"sum", "mean", "softmax", "log_softmax", "argmax", "cumsum", "norm", "amax", "all"}
_AXES = {"dim", "axis"}
_LOW = "float32|float16|bfloat16|float64"
_OTHER = {
    "silu": "gelu", "gelu": "silu", "relu": "silu", "sigmoid": "tanh", "tanh": "sigmoid",
    "softmax": "log_softmax", "mean": "sum", "sum": "mean", "max": "min", "amax": "amin",
    "repeat_interleave": "repeat", "argmax": "argmin", "rsqrt": "sqrt", "cos": "sin", "sin": "cos",
    "exp": "expm1", "log": "log1p", "ones": "zeros", "zeros": "ones", "triu": "tril",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "cumsum": "cumprod",
}  # fmt: skip
OPERATORS: dict[str, Operator] = {}


def _operator(function: Operator) -> Operator:
    OPERATORS[function.__name__] = function
    return function


def _keywords(node: ast.AST, *names: str) -> Iterator[ast.keyword]:
    if isinstance(node, ast.Call):
        yield from (word for word in node.keywords if word.arg in names)


def _without(source: Source, call: ast.Call, gone: ast.AST) -> Edit:
    rest = [source.spell(a) for a in call.args if a is not gone]
    rest += [f"{w.arg}={source.spell(w.value)}" if w.arg else f"**{source.spell(w.value)}"
             for w in call.keywords if w is not gone]  # fmt: skip
    return source.replace(call, f"{source.spell(call.func)}({', '.join(rest)})")


def _off(number: float) -> str:
    """Return the axis beside one."""
    return str({-1: -2, 0: 1}.get(int(number), int(number) - 1))


@_operator
def another_axis(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, *_AXES):
        found = number_of(word.value)
        if isinstance(found, int):
            yield source.replace(word.value, _off(found))


@_operator
def another_axis_by_position(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in _REDUCING and isinstance(node, ast.Call) and node.args:
        found = number_of(node.args[-1])
        if isinstance(found, int):
            yield source.replace(node.args[-1], _off(found))


@_operator
def unsqueeze_elsewhere(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"unsqueeze", "squeeze", "flatten", "chunk", "split", "stack", "gather"}:
        numbers = [a for a in node.args if isinstance(number_of(a), int)]  # type: ignore[attr-defined] # a call
        for last in numbers[-1:]:
            yield source.replace(last, _off(number_of(last) or 0))


@_operator
def transpose_dropped(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"transpose", "permute"} and is_method(node):
        yield source.replace(node, source.spell(node.func.value))  # type: ignore[attr-defined] # a method


def _binary(source: Source, node: ast.AST, kind: type[ast.operator], new: str) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
        left, right = source.spell(node.left), source.spell(node.right)
        yield source.replace(node, new.format(left=left, right=right))


_CALCULATED: dict[str, tuple[type[ast.operator], str]] = {
    "minus_for_plus": (ast.Add, "{left} - {right}"),
    "plus_for_minus": (ast.Sub, "{left} + {right}"),
    "minus_turned_round": (ast.Sub, "{right} - {left}"),
    "division_for_product": (ast.Mult, "{left} / {right}"),
    "product_for_division": (ast.Div, "{left} * {right}"),
    "factor_dropped": (ast.Mult, "{left}"),
    "term_dropped": (ast.Add, "{right}"),
    "last_term_dropped": (ast.Add, "{left}"),
    "quotient_for_remainder": (ast.Mod, "{left} // {right}"),
    "floor_dropped": (ast.FloorDiv, "({left} + 1) // {right}"),
    "sign_of_exponent": (ast.Pow, "{left} ** -({right})"),
}
OPERATORS |= {name: partial(_binary, kind=k, new=new) for name, (k, new) in _CALCULATED.items()}


@_operator
def negation_dropped(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        if number_of(node) is None:
            yield source.replace(node, source.spell(node.operand))


@_operator
def mask_turned_round(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"masked_fill", "masked_fill_", "where"} and isinstance(node, ast.Call):
        for mask in node.args[:1]:
            yield source.replace(mask, f"~({source.spell(mask)})")


def _change_comparisons(
    source: Source, node: ast.AST, other: dict[type[ast.cmpop], str]
) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in other and len(node.ops) == 1:
        left, right = source.spell(node.left), source.spell(node.comparators[0])
        yield source.replace(node, f"{left} {other[type(node.ops[0])]} {right}")


_COMPARED: dict[str, dict[type[ast.cmpop], str]] = {
    "comparison_turned_round": {
        ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.Gt: "<=", ast.LtE: ">", ast.GtE: "<",
    },
    "bound_moved": {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"},
    "none_turned_round": {ast.Is: "is not", ast.IsNot: "is"},
}  # fmt: skip
OPERATORS |= {name: partial(_change_comparisons, other=other) for name, other in _COMPARED.items()}


@_operator
def condition_turned_round(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.IfExp):
        yield source.replace(node.test, f"not ({source.spell(node.test)})")


@_operator
def or_for_and(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield source.replace(node, word.join(map(source.spell, node.values)))


@_operator
def slice_off_by_one(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Slice):
        for end in (node.lower, node.upper):
            if end is not None:
                yield source.replace(end, f"{source.spell(end)} + 1")


@_operator
def index_off_by_one(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Subscript):
        at = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for one in at:
            if isinstance(number_of(one), int):
                yield source.replace(one, _off(number_of(one) or 0))


@_operator
def range_off_by_one(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"range", "arange"} and isinstance(node, ast.Call):
        for last in node.args[:1]:
            yield source.replace(last, f"{source.spell(last)} + 1")


@_operator
def length_of_another(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Take the width for the length, or one side's length for the other's."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        found = number_of(node.slice)
        if node.value.attr == "shape" and isinstance(found, int):
            text = source.spell(node.value.value)
            swapped = {"key": "query", "query": "key", "k": "q", "q": "k"}
            for old, new in swapped.items():
                if re.search(rf"\b{old}", text):
                    yield source.replace(node.value.value, re.sub(rf"\b{old}", new, text, count=1))
                    break


@_operator
def epsilon_outside(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"rsqrt", "sqrt"} and isinstance(node, ast.Call) and node.args:
        inside = node.args[0]
        if isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Add):
            called, right = source.spell(node.func), source.spell(inside.right)
            yield source.replace(node, f"({called}({source.spell(inside.left)}) + {right})")


@_operator
def constant_changed(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield source.replace(node, repr(node.value * 1.25 or 0.125))


@_operator
def count_changed(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mult | ast.Add):
        if isinstance(number_of(node.right), int):
            yield source.replace(node.right, str(int(number_of(node.right) or 0) + 1))


@_operator
def cast_dropped(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and is_method(node):
        called, given = name_of(node), [source.spell(a) for a in node.args]
        up = called == "to" and given and re.search(rf"torch\.({_LOW})|dtype", given[-1])
        if called in {"float", "half", "bfloat16", "type_as", "double", "int", "long"} or up:
            yield source.replace(node, source.spell(node.func.value))  # type: ignore[attr-defined] # a method


@_operator
def dtype_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, "dtype"):
        yield _without(source, node, word)  # type: ignore[arg-type] # a call


@_operator
def integers_of_another_type(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Attribute) and node.attr in {"long", "int64", "int32", "int"}:
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            yield source.replace(node, "torch.uint8")


@_operator
def keepdim_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, "keepdim"):
        yield _without(source, node, word)  # type: ignore[arg-type] # a call


@_operator
def another_function(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in _OTHER and isinstance(node, ast.Call):
        new = source.spell(node.func)[: -len(name_of(node))] + _OTHER[name_of(node)]
        yield source.replace(node.func, new)


@_operator
def another_reduction(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, "reduction"):
        yield source.replace(
            word.value, '"sum"' if "mean" in source.spell(word.value) else '"mean"'
        )


@_operator
def another_default(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.arguments):
        for default in (*node.defaults, *(d for d in node.kw_defaults if d is not None)):
            if isinstance(default, ast.Constant) and isinstance(default.value, bool | int | float):
                value = default.value
                new = not value if isinstance(value, bool) else value * 2 or 1
                yield source.replace(default, repr(new))


@_operator
def state_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        yield source.replace(node.targets[0], "_forgotten")


@_operator
def update_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign):
        yield source.replace(node, "pass")


@_operator
def method_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Forget what makes a copy, keeps memory in order, or stops a gradient."""
    if name_of(node) in {"clone", "contiguous", "detach", "abs", "softmax", "exp", "masked_fill"}:
        if is_method(node):
            yield source.replace(node, source.spell(node.func.value))  # type: ignore[attr-defined] # a method


@_operator
def gradient_stopped(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp | ast.Call):
        yield source.replace(node.value, f"({source.spell(node.value)}).detach()")


@_operator
def written_in_place(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        value, signs = node.value, {ast.Add: "+=", ast.Mult: "*=", ast.Sub: "-=", ast.Div: "/="}
        if isinstance(value, ast.BinOp) and type(value.op) in signs:
            if isinstance(value.left, ast.Name) and value.left.id == node.targets[0].id:
                text = f"{value.left.id} {signs[type(value.op)]} {source.spell(value.right)}"
                yield source.replace(node, text)


@_operator
def order_of_parts(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"cat", "stack", "concat"} and isinstance(node, ast.Call) and node.args:
        parts = node.args[0]
        if isinstance(parts, ast.Tuple | ast.List):
            texts = list(map(source.spell, parts.elts))
            if texts != texts[::-1]:
                yield source.replace(parts, f"[{', '.join(texts[::-1])}]")


def _exchanged(source: Source, first: ast.expr, second: ast.expr) -> Edit:
    start, end = source.span(first)[0], source.span(second)[1]
    between = source.between(first, second)
    new = f"{source.spell(second)}{between}{source.spell(first)}"
    return Edit(start, end, new, first.lineno)


@_operator
def arguments_exchanged(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"where", "matmul", "sub", "div", "bmm", "atan2", "pow"}:
        last = node.args[-2:]  # type: ignore[attr-defined] # a call
        if len(last) > 1:
            yield _exchanged(source, *last)


@_operator
def arguments_of_own_call_exchanged(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and name_of(node) not in {"where", "isinstance", "getattr"}:
        for first, second in itertools.pairwise(node.args):
            if isinstance(first, ast.Name) and isinstance(second, ast.Name):
                yield _exchanged(source, first, second)


@_operator
def parts_exchanged(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Take the gate for the value: ``b, a = x.chunk(2)``."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        names = node.targets[0].elts
        if len(names) > 1 and all(isinstance(name, ast.Name) for name in names):
            yield _exchanged(source, *names[-2:])


@_operator
def axes_exchanged(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"permute", "reshape", "view"} and isinstance(node, ast.Call):
        if len(node.args) > 2:  # noqa: PLR2004 - the last two of at least three
            yield _exchanged(source, *node.args[-2:])


@_operator
def bound_for_bound(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, "min", "max"):
        other = "max" if word.arg == "min" else "min"
        yield source.replace(word, f"{other}={source.spell(word.value)}")


@_operator
def dropout_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) == "dropout" and isinstance(node, ast.Call) and node.args:
        yield source.replace(node, source.spell(node.args[0]))
    for word in _keywords(node, "training"):
        yield source.replace(word.value, "True")


@_operator
def argument_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"linear", "layer_norm", "scaled_dot_product_attention", "rms_norm"}:
        words = [w for w in node.keywords if w.arg not in {"weight", "normalized_shape"}]  # type: ignore[attr-defined] # a call
        for word in words[:2]:
            yield _without(source, node, word)  # type: ignore[arg-type] # a call


@_operator
def keyword_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    words = "approximate", "unbiased", "correction", "diagonal", "ignore_index", "rounding_mode"
    for word in _keywords(node, *words, "descending", "largest", "right", "end_dim", "start_dim"):
        yield _without(source, node, word)  # type: ignore[arg-type] # a call


@_operator
def keepdim_added(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in _REDUCING - {"softmax", "log_softmax", "cumsum"}:
        if isinstance(node, ast.Call) and not any(_keywords(node, "keepdim", "keepdims")):
            if node.args or any(_keywords(node, *_AXES)):
                yield source.replace(node, f"{source.spell(node)[:-1].rstrip(', ')}, keepdim=True)")


@_operator
def diagonal_moved(source: Source, node: ast.AST) -> Iterator[Edit]:
    for word in _keywords(node, "diagonal"):
        yield source.replace(word.value, f"{source.spell(word.value)} + 1")
    if name_of(node) in {"triu", "tril"} and not any(_keywords(node, "diagonal")):
        yield source.replace(node, f"{source.spell(node)[:-1].rstrip(', ')}, diagonal=1)")


@_operator
def step_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Leave ``x = self.norm(x)`` out."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if isinstance(node.value, ast.Call) and node.targets[0].id in names:
            yield source.replace(node, "pass")


@_operator
def computed_in_half_precision(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Attribute) and source.spell(node) == "torch.float32":
        yield source.replace(node, "torch.bfloat16")
    if name_of(node) == "float" and is_method(node):
        yield source.replace(node.func, f"{source.spell(node.func.value)}.bfloat16")  # type: ignore[attr-defined] # a method


@_operator
def cast_too_late(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Sum first and cast then: ``x.sum(-1).float()`` for ``x.float().sum(-1)``."""
    if is_method(node) and is_method(node.func.value):  # type: ignore[attr-defined] # a method
        cast = node.func.value  # type: ignore[attr-defined] # same
        if name_of(cast) in {"float", "double", "to"}:
            owner = cast.func.value
            called, rest = source.after(owner, cast), source.after(cast, node)
            yield source.replace(node, f"{source.spell(owner)}{rest}{called}")


@_operator
def infinity_made_finite(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call | ast.UnaryOp | ast.Attribute):
        if re.fullmatch(r"""float\(["']-inf["']\)|-?(torch|math)\.inf""", source.text_at(node)):
            yield source.replace(node, "-1e4")


@_operator
def limit_forgotten(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"clamp", "clamp_min", "clamp_max", "clip", "clamp_", "nan_to_num"}:
        if is_method(node):
            yield source.replace(node, source.spell(node.func.value))  # type: ignore[attr-defined] # a method
        elif node.args:  # type: ignore[attr-defined] # a call
            yield source.replace(node, source.spell(node.args[0]))  # type: ignore[attr-defined] # same


@_operator
def operand_overwritten(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Write into what was only read: ``x.mul_(2)`` for ``x * 2``, ``clamp_`` for ``clamp``."""
    own = {ast.Add: "add_", ast.Mult: "mul_", ast.Sub: "sub_", ast.Div: "div_"}
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and type(node.op) in own:
        right = source.spell(node.right)
        yield source.replace(node, f"{node.left.id}.{own[type(node.op)]}({right})")
    if name_of(node) in {"masked_fill", "clamp", "relu", "scatter", "index_fill", "index_add"}:
        if is_method(node):
            owner = source.spell(node.func.value)  # type: ignore[attr-defined] # a method
            yield source.replace(node.func, f"{owner}.{name_of(node)}_")  # type: ignore[attr-defined] # same


@_operator
def gradient_kept(source: Source, node: ast.AST) -> Iterator[Edit]:
    if name_of(node) in {"no_grad", "inference_mode"} and isinstance(node, ast.Call):
        yield source.replace(node, "torch.enable_grad()")


@_operator
def view_for_transpose(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Give the axes other sizes instead of another order."""
    if name_of(node) == "transpose" and is_method(node):
        owner = source.spell(node.func.value)  # type: ignore[attr-defined] # a method
        yield source.replace(node, f"{owner}.reshape({source.spell(node)}.shape)")  # type: ignore[arg-type] # same


@_operator
def loop_cut_short(source: Source, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        yield source.replace(node.iter, f"list({source.spell(node.iter)})[:-1]")
