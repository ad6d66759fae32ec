"""The numbers that stand in code: what lies on both sides of them is worth trying.

``scores.split(256)``, ``max_len: int = 512`` and ``positions.to(torch.uint8)`` each say at which
sizes and values something else happens.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.inputs.source.slicing import slice_module
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LEAST = 9
"""Smaller sizes are tried in any case."""
_MOST = 1 << 20
_SHARES = (1e-3, 0.1)
_PARSE_S = 2.0
_OF_TYPES = (
    # The first whole number that the type does not hold, or not exactly.
    (r"\buint8\b|\bbyte\b|ByteTensor", 256),
    (r"\bint8\b|CharTensor", 128),
    (r"\bint16\b|\bshort\b|ShortTensor", 32768),
    (r"\bbfloat16\b|\bBFloat16Tensor", 257),
    (r"\bfloat16\b|\bhalf\b|HalfTensor", 2049),
    # Itself it holds, but no product with ``1000003``, as hashes of identifiers make it.
    (r"\bint32\b|\.int\(|torch\.int\b|\bIntTensor", 1 << 20),
)
_GROWING = r"arange|cumsum|cumprod|linspace|position|\bscan\b|outer\("
"""What counts: in the dtype of the activations, it cannot beyond this."""
_ONES = r"\bones(_like)?\(|\bnew_ones\("
_ADDS = r"\b(index_add|scatter_add|scatter_reduce|index_put)_?\("
"""What counts one by one: in halves, it stays at 256 however many there are."""
_CAST = r"\.dtype\b|type_as|autocast|\.to\(\w+\)|\.float\(|\bfloat32\b|\.double\(|\bfloat64\b"
_BFLOAT16_COUNTS_TO = 257
_BFLOAT16_IS_FAR_BELOW = 4096


def list_numbers(texts: Iterable[str], qualname: str) -> list[int]:
    """Return the numbers beyond which a function may do something else, the likeliest first.

    ``texts`` are the versions of its module; what only one of them says comes first.
    """
    texts = list(texts)
    every = [_numbers(text, qualname) for text in texts]
    shared = set.intersection(*map(set, every)) if every else set()
    found = [n for numbers in every for n in numbers if n not in shared]
    shares = [_read_shares(text, qualname) for text in texts]
    found += sorted(set[int]().union(*shares) - shares[0].intersection(*shares)) if shares else []
    found += [n for n in next(iter(every), []) if n in shared]
    return list(dict.fromkeys(found))


def _list_parts(text: str, qualname: str) -> list[ast.stmt]:
    tree = try_call(lambda: parse_once(text), _PARSE_S).value
    parts = slice_module(tree, qualname.partition(".")[0]) if isinstance(tree, ast.Module) else []
    return [part for part in parts if not isinstance(part, ast.Import | ast.ImportFrom)]


def _read_shares(text: str, qualname: str) -> set[int]:
    """Return of how many equal ones each is as small as a number: 100 for ``p.clamp(min=0.01)``."""
    nodes = walk(*_list_parts(text, qualname))
    values = (n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is float)
    low, high = _SHARES
    return {round(1 / value) for value in values if low <= value <= high}


def _numbers(text: str, qualname: str) -> list[int]:
    found: list[int] = []
    for part in _list_parts(text, qualname):
        source = ast.unparse(part)
        found += [first for pattern, first in _OF_TYPES if re.search(pattern, source)]
        if re.search(_GROWING, source) and re.search(_CAST, source):
            found.append(_BFLOAT16_COUNTS_TO)
        if re.search(_ONES, source) and re.search(_ADDS, source):
            found.append(_BFLOAT16_IS_FAR_BELOW)
        found += list(_constants(part))
    return found


def _constants(tree: ast.AST) -> Iterator[int]:
    for node in walk(tree):
        if isinstance(node, ast.BinOp):
            value = _power(node)
            if value is not None:
                yield value
        if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
            number = node.value
            if _LEAST <= number <= _MOST and number == int(number):  # type: ignore[operator,arg-type] # a number
                yield int(number)  # type: ignore[arg-type] # same


def _power(node: ast.BinOp) -> int | None:
    """Return what ``2**13`` or ``4 * 1024`` is."""
    left, right = node.left, node.right
    if not (isinstance(left, ast.Constant) and isinstance(right, ast.Constant)):
        return None
    one, other = left.value, right.value
    if type(one) is not int or type(other) is not int:
        return None
    value = 0
    if isinstance(node.op, ast.Mult):
        value = one * other
    elif isinstance(node.op, ast.Pow | ast.LShift) and 0 <= other < _MOST.bit_length():
        value = one**other if isinstance(node.op, ast.Pow) else one << other
    return value if _LEAST <= value <= _MOST else None
