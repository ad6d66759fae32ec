"""Nodes as a reader would write them: ``x.pow(2).mean(-1, keepdim=True)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.nodes import Node

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "floordiv": "//", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
}  # fmt: skip
_DEEPEST = 4
_UNARY_SIGNS = {"neg": "-", "invert": "~", "pos": "+", "not": "not "}


def phrase(node: Node, depth: int = 0) -> str:  # noqa: C901, PLR0911, PLR0912 - one case a node
    """Return a node as Python; what lies deeper than a few operations is left out."""
    args = node.args
    if args and depth >= _DEEPEST:
        return "…"

    def text(arg: Node) -> str:
        arg = first_option(arg)
        written = phrase(arg, depth + 1)
        binary = arg.op in _SYMBOLS or arg.op in _UNARY_SIGNS
        return f"({written})" if binary and written != "…" else written

    match node.op:
        case Op.CONST:
            return "..." if node.value is Ellipsis else repr(node.value)
        case Op.PARAM | Op.GLOBAL | Op.DTYPE | Op.COUNTER | Op.ELEMENT | Op.CARRIED | Op.AFTER:
            value = node.value[-1] if isinstance(node.value, tuple) else node.value
            return str(value)
        case Op.ATTR:
            return f"{text(args[0])}.{node.value}"
        case Op.EITHER:
            return phrase(first_option(node), depth)
        case Op.CAST:
            return f"{text(args[0])}.to({phrase(args[1], depth + 1)})"
        case Op.DTYPE_OF:
            return f"{text(args[0])}.dtype"
        case Op.SHAPE:
            return f"{text(args[0])}.shape"
        case Op.SIZE:
            return f"{text(args[0])}.size({phrase(args[1], depth + 1)})"
        case "square":
            return f"{text(args[0])}.pow(2)"
        case Op.ITEM:
            return f"{text(args[0])}[{node.value}]"
        case Op.GETITEM:
            return f"{text(args[0])}[{_inside(args[1], depth)}]"
        case Op.SETITEM:
            return f"{text(args[0])}[{_inside(args[1], depth)}] = {phrase(args[2], depth + 1)}"
        case Op.PHI:
            return f"{text(args[1])} if {text(args[0])} else {text(args[2])}"
        case Op.SLICE:
            return ":".join("" if a.value is None else phrase(a, depth + 1) for a in args[:2])
        case Op.TUPLE | Op.LIST:
            return f"({', '.join(phrase(a, depth + 1) for a in args)})"
        case Op.OPAQUE | Op.CALL | Op.UNSET:
            return "…"
    if node.op in _SYMBOLS and len(args) == 2:  # noqa: PLR2004 - left and right
        return f"{text(args[0])} {_SYMBOLS[node.op]} {text(args[1])}"
    if node.op in _UNARY_SIGNS and len(args) == 1:
        return f"{_UNARY_SIGNS[node.op]}{text(args[0])}"
    return _call(node, depth)


def first_option(node: Node) -> Node:
    """Return the spelling that a rule names first."""
    while node.op == Op.EITHER:
        node = node.args[0]
    return node


def _inside(index: Node, depth: int) -> str:
    return phrase(index, depth + 1).removeprefix("(").removesuffix(")")


def _call(node: Node, depth: int) -> str:
    """Return ``x.mean(-1, keepdim=True)``: what has its default is not written."""
    name = node.op.partition(":")[2] or node.op
    if not node.args:
        return f"{name}()"
    shown = []
    signature = list((operators.signature(node.op) or {}).items())
    for place, arg in enumerate(node.args[1:]):
        parameter, default = signature[place] if place < len(signature) else ("", object())
        if arg.op == Op.CONST and type(arg.value) is type(default) and arg.value == default:
            continue
        written = phrase(arg, depth + 1)
        is_keyword = place and parameter and isinstance(default, (int, float, str, type(None)))
        shown.append(f"{parameter}={written}" if is_keyword else written)
    first = phrase(node.args[0], depth + 1)
    owner = f"({first})" if " " in first and not first.endswith(")") else first
    return f"{owner}.{name}({', '.join(shown)})"
