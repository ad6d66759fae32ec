"""Which rules a text may concern, going by its words alone: reading it costs much more."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.canonical import OP_ALIASES, SIGNATURES
from npufix.rewriters.matching import pattern_of
from npufix.rewriters.submodules import FUNCTIONS
from npufix.rewriters.torch_names import PURE_METHODS, RANDOM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.nodes import Node
    from npufix.rules.substitution import Substitution

_Words = tuple[str, ...]
# Operations that can be written with symbols, or under names that have little to do with them.
_SPELLINGS = {
    "activation": ("ACT", "act"),
    "arange": ("arange",),
    "augment": ("+=", "-=", "*=", "/="),
    "cat": ("cat(", "concat"),
    "chunk": ("chunk", "split", "//", "/ 2", "/2", "unbind"),
    "dropout": ("ropout",),
    "einsum": ("einsum",),
    "full": ("full",),
    "item": (),
    "ones": ("ones",),
    "sigmoid": ("igmoid",),
    "stack": ("stack",),
    "matmul": ("@", "matmul", "mm"),
    "rsqrt": ("sqrt", "**", "pow"),
    "sqrt": ("sqrt", "**", "pow"),
    "sum": ("sum",),
    "zeros": ("zeros",),
    "setitem": ("] =", "]=", "] :"),
    "one_hot": ("one_hot",),
    "linear": ("linear", "Linear"),
    "scaled_dot_product_attention": ("scaled_dot_product_attention",),
}
_SYMBOLS = frozenset(
    {
        "abs", "add", "and", "cast", "half", "div", "eq", "float", "ge", "gt", "int", "le", "long",
        "lt", "maximum", "minimum", "mul", "ne", "neg", "or", "pow", "reciprocal", "round", "size",
        "square", "squeeze", "stack", "sub", "t", "to", "transpose", "type", "unbind", "unsqueeze",
        "view", "expand", "flatten", "dim", "max", "min", "sum", "all", "any", "sigmoid",
    }
)  # fmt: skip
# More ways to write a pattern than these are judged by what they have in common.
_MOST_ALTERNATIVES = 8
_ALIASES: dict[str, tuple[str, ...]] = {}
for _alias, _op in OP_ALIASES.items():
    _ALIASES[_op] = (*_ALIASES.get(_op, ()), _alias)
_MODULES = {op: name for name, op in FUNCTIONS.items() if op}


def possible(rules: Sequence[Substitution], text: str) -> list[Substitution]:
    """Return the rules whose operations a text may hold."""
    absent = frozenset(
        words for words in _vocabulary(tuple(rules)) if not any(word in text for word in words)
    )
    return [r for r in rules if any(absent.isdisjoint(needed) for needed in _needed(r))]


@cache
def _vocabulary(rules: tuple[Substitution, ...]) -> frozenset[_Words]:
    return frozenset().union(*(needed for rule in rules for needed in _needed(rule)))


@cache
def _needed(rule: Substitution) -> tuple[frozenset[_Words], ...]:
    """Return, for each spelling of a pattern, the words of which a text must hold one each."""
    found = {
        needed for form in rule.forms for needed in _alternatives(pattern_of(form.pattern).root)
    }
    return tuple(one for one in found if not any(other < one for other in found))


def _alternatives(node: Node) -> frozenset[frozenset[_Words]]:
    """Return the words of a node and its operands, one set for each way to spell it."""
    if node.op == "either":
        return frozenset().union(*map(_alternatives, node.args))
    words = words_of(node.op)
    found = {frozenset({words} if words else ())}
    for arg in node.args:
        found = {left | right for left in found for right in _alternatives(arg)}
        if len(found) > _MOST_ALTERNATIVES:
            found = {frozenset.intersection(*found)}
    return frozenset(found)


@cache
def words_of(op: str) -> tuple[str, ...]:  # noqa: PLR0911 - one for each kind of operation
    """Return the words of which one stands wherever an operation does; none if that is unknown."""
    if op in _SPELLINGS:
        return _SPELLINGS[op]
    if op in _SYMBOLS:
        return ()
    if op.startswith("module:"):
        return (op.removeprefix("module:").partition(" ")[0],)
    if "." in op:
        return (op.rpartition(".")[2],)
    if op in _MODULES:
        return (op, _MODULES[op], *_ALIASES.get(op, ()))
    if op.rstrip("_") in PURE_METHODS or op in RANDOM or op in SIGNATURES:
        return (op.rstrip("_"), *_ALIASES.get(op, ()))
    return ()
