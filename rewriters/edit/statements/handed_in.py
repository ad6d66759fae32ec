"""Tables that a layer computes from what every layer is handed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.edit.statements.surroundings import is_repeatable
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_LAYER = re.compile(r"(Layer|Block|Attention|Attn|SelfAttention|CrossAttention)\w*$")
_PER_LAYER = re.compile(
    r"(apply_?)?(rope|rotary)|apply_\w*(rope|rotary)|attention|attn", re.IGNORECASE
)
_TABLE = re.compile(
    r"freq|rope|rotary|(^|_)(pos(ition)?s?|cos|sin)(_|$)|mask|cu_?seq|seq_?lens?|lengths?$|spatial_shapes|grid"
)
"""What a model hands to all its layers is called like this."""
_LABOUR = frozenset(
    {
        "arange", "argsort", "bincount", "cat", "cos", "cumsum", "diff", "meshgrid", "nonzero",
        "one_hot", "outer", "polar", "repeat_interleave", "searchsorted", "sin", "sort", "tril",
        "triu", "unique",
    }
)  # fmt: skip
"""Operators that make tables; what is cheap is as cheap as handing it down."""
_OF_PIECES = frozenset({"chunk", "enumerate", "len", "range", "split", "unbind", "zip"})
"""What a list of the pieces of a table calls."""
_READING = frozenset({"cpu", "item", "numpy", "py:int", "tolist"})
_ADVICE = (
    "every layer gets this and computes it anew: compute it once where the layers are called, and "
    "hand the result down"
)

_KEPT = (
    "nothing in it changes from call to call: compute it in __init__, "
    'register_buffer("name", ..., persistent=False), and read self.name'
)
_FEWEST_OF_SETTINGS = 2
"""Operators: what one kernel fills is as cheap as reading it."""


def find_handed_in(here: Surroundings) -> Iterator[Proposal]:
    """Yield what a layer computes from masks, positions and lengths alone, once a statement."""
    if not _is_of_layer(here):
        return
    found = [
        (node.value, value)
        for node in here.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and (value := here.value(node.value)) is not None
        and _is_table(here, value)
    ]
    for code, _ in _wholes(found):
        yield Proposal(code, _ADVICE)


def _wholes(found: Sequence[tuple[ast.expr, Node]]) -> Iterator[tuple[ast.expr, Node]]:
    """Yield what is no part of another one: ``inv_freq`` that only ``angles`` needs is one."""
    for code, value in found:
        if not any(value in other.walk() for _, other in found if other is not value):
            yield code, value


def is_handed_in(here: Surroundings, node: Node) -> bool:
    """Tell whether a value is the same in every layer, and each of them computes it."""
    return _is_of_layer(here) and _is_table(here, node)


def _is_of_layer(here: Surroundings) -> bool:
    cls, name = here.flow.cls, here.flow.function.name
    if cls is not None and re.fullmatch("forward(_(oot|npu|native|impl))?", name):
        return bool(_LAYER.search(cls.name))
    return bool(_PER_LAYER.match(name))


def _is_table(here: Surroundings, node: Node) -> bool:
    is_read = False
    while node.op in _READING or _is_to_host(node):  # ``cu_seqlens.diff().max().item()``
        node, is_read = node.args[0], True
    parts = list(_parts(node))
    if not is_read and not any(part.op.removesuffix("(*)") in _LABOUR for part in parts):
        return False
    handed = [part for part in parts if part.op in {Op.PARAM, Op.ELEMENT} and _name(part) != "self"]
    tables = all(_TABLE.search(_name(part)) for part in handed)
    return bool(handed) and tables and all(_is_repeatable(here, part) for part in parts)


def _is_repeatable(here: Surroundings, part: Node) -> bool:
    """Tell whether a part of a value is the same in every layer; a list of pieces is read as text.

    ``[m[i % 3] for i, m in enumerate(cos.split(sections, dim=-1))]``
    """
    if part.op != Op.OPAQUE:
        return is_repeatable(here, part)
    called = re.findall(r"func=(?:Name\(id=|Attribute\(.*?attr=)'(\w+)'", str(part.value))
    return "ListComp(" in str(part.value) and _OF_PIECES.issuperset(called)


def _parts(node: Node) -> Iterator[Node]:
    """Yield what a value is computed from, but for what only shapes and devices are read of."""
    return node.walk(lambda part: () if _is_about(part) else part.args)


def _is_about(part: Node) -> bool:
    """Tell whether something is read about a tensor: ``device=x.device`` reads nothing of ``x``."""
    of_shape = part.op in {Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE}
    return of_shape or (part.op == Op.ATTR and part.value == "device")


def _is_to_host(node: Node) -> bool:
    """Tell whether a value is brought over by name: ``x.to("cpu")``."""
    return node.op == "to" and any(arg.value == "cpu" for arg in node.args[1:])


def _name(node: Node) -> str:
    """Return the name of a parameter, or of what a loop goes through."""
    return str(node.value[-1] if isinstance(node.value, tuple) else node.value)


def find_constants(here: Surroundings) -> Iterator[Proposal]:
    """Yield what a module computes in each call from its settings alone, once a table."""
    if here.flow.cls is None or not _is_module(here.flow.cls) or _fills_buffers(here):
        return
    found = [
        (node.value, value)
        for node in here.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and here.loop_of(node) is None
        and (value := here.value(node.value)) is not None
        and _is_of_settings(here, value)
    ]
    for code, _ in _wholes(found):
        yield Proposal(code, _KEPT)


def _fills_buffers(here: Surroundings) -> bool:
    """Tell whether a method is where tables are kept: ``self.cos.copy_(theta.cos())``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "copy_"
        and here.text(node.func.value).startswith("self.")
        for node in here.nodes
    )


def _is_module(cls: ast.ClassDef) -> bool:
    return any(last_name(base).endswith("Module") for base in cls.bases)


def _is_of_settings(here: Surroundings, node: Node) -> bool:
    """Tell whether nothing but settings and a device is read, and several operators are run."""
    parts: list[Node] = []
    stack = [node]
    while stack:
        part = stack.pop()
        parts.append(part)
        # ``device=x.device`` reads nothing of ``x``
        about = part.op == Op.DTYPE_OF or (part.op == Op.ATTR and part.value == "device")
        if part.op in {Op.PARAM, Op.ELEMENT, Op.CARRIED, Op.AFTER} and _name(part) != "self":
            return False
        stack += () if about else part.args
    made = {
        part
        for part in parts
        if part.op.removesuffix("(*)") in operators.FACTORIES
        and any(arg.value != 1 for arg in part.args)  # one number is no table
    }
    # ``self.count - 1`` is computed by Python; what brings a table over is no reason to keep it
    work = [
        p
        for p in parts
        if p.op in operators.TABLE
        and p.op not in operators.VIEWS | operators.MOVES
        and not made.isdisjoint(p.walk())
    ]
    # what ``device`` is asked of is none of its parts: ``tensors.data.device``
    return len(work) >= _FEWEST_OF_SETTINGS and all(is_repeatable(here, p) for p in parts)
