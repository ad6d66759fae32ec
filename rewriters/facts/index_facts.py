"""What the source proves about the indices and devices that a value is."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import COUNT, is_plain_attribute, list_assigned
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import list_defaults, nodes_of
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node

_LENGTH = re.compile(r"(^|_)(size|rate|factor|length|repeats|stride|ratio)$")
_CONFIG = re.compile(r"(^|_)(config|cfg|args|hparams)$")
# ``None`` is no number of repeats, and an error before as after a change.
INT_ANNOTATION = re.compile(r"int( \| None)?|(typing\.)?(Optional\[int\]|Union\[int, None\])")
_ASKS = re.compile(r"^(isinstance|type|len|hasattr|torch\.is_tensor)$")
_BY_POSITION = frozenset(
    {"gather", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill",
     "index_fill_", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_"}
)  # fmt: skip
# Arguments that nobody gives a tensor to.
_COUNTS = re.compile(
    r"(\w+_)?(batch_size|beam_size|per_prompt|num_beams|n_rep|num_return_sequences)|bsz"
)
# What the result of has the dtype, and most often the meaning, of.
_SAME_KIND = operators.KEEPS | {Op.GETITEM, "invert", Op.ATTR, Op.CALL, Op.ITEM, "to", Op.CAST}
_BOTH_KINDS = frozenset({"and", "or", "xor"})


def names_of(node: Node, local: Mapping[str, Node]) -> list[str]:
    """Return the names that say what a tensor is: its own, that of what it is a part of."""
    parts, seen, found = [node], {node}, list[str]()
    for part in parts:  # grows
        found += [name for name, value in local.items() if value is part]
        if part.op in {Op.PARAM, Op.ATTR, Op.GLOBAL}:
            found.append(str(part.value))
        if part.op == Op.GETITEM and isinstance(part.args[1].value, str):
            found.append(part.args[1].value)
        if part.op in _SAME_KIND | _BOTH_KINDS:
            inner = part.args if part.op in _BOTH_KINDS else part.args[:1]
            parts += [one for one in inner if one not in seen]
            seen.update(inner)
    return found


def is_comparison_method(code: ast.AST) -> bool:
    """Tell whether code is ``x.ne(y)``, which only a tensor has."""
    match code:
        case ast.Call(ast.Attribute(_, attr), [_]):
            return attr in operators.COMPARISONS
    return False


def is_used_as_int(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether an argument of the function is an int: by its default, or as a length."""
    if node.op != Op.PARAM or _may_be_something_else(flow, str(node.value)):
        return False
    if type(_default(flow, str(node.value))) is int or _COUNTS.fullmatch(str(node.value)):
        return True
    if node in _numbers(flow):
        return True
    return _is_declared_elsewhere(flow, str(node.value))


def _may_be_something_else(flow: FunctionFlow, param: str) -> bool:
    """Tell whether an argument is declared as a tensor too, or asked for what it is."""
    if "Tensor" in annotation(flow, param):
        return True
    return param in _list_asked(flow)


@lru_cache(maxsize=4)
def _list_asked(flow: FunctionFlow) -> frozenset[str]:
    """Return the names that a function asks for what they are."""
    return frozenset(
        call.args[0].id
        for call in nodes_of(flow.function)
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Name)
        if _ASKS.search(ast.unparse(call.func))
    )


@lru_cache(maxsize=4)
def _numbers(flow: FunctionFlow) -> frozenset[Node]:
    """Return what operations take as a length, or an ``if`` asks how large it is."""
    found: set[Node] = set()
    for user in {evaluation.node for evaluation in flow.evaluations}:
        found.update(_lengths(user))
        if user.op == Op.PHI and user.args[0].op in operators.COMPARISONS:
            found.update(user.args[0].args)
    return frozenset(found)


def _is_declared_elsewhere(flow: FunctionFlow, param: str) -> bool:
    """Tell whether other methods of the class declare a parameter of this name, all as an int."""
    if flow.cls is None:
        return False
    declared = set()
    for method in flow.cls.body:
        if isinstance(method, FunctionNode):
            spec = method.args
            declared |= {
                ast.unparse(arg.annotation)
                for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)
                if arg.arg == param and arg.annotation is not None
            }
    return bool(declared) and all(INT_ANNOTATION.fullmatch(text) for text in declared)


def _lengths(node: Node) -> Iterator[Node]:
    """Yield the lengths, and the factors of lengths, that an operator is given."""
    if node.op in operators.TAKES_LENGTHS or node.op == "py:range":
        first = 0 if node.op in operators.FACTORIES or node.op == "py:range" else 1
        for size in node.args[first : 1 if node.op == "full" else None]:
            yield from size.args if size.op in {"mul", Op.TUPLE} else (size,)


def _default(flow: FunctionFlow, param: str) -> object:
    given = list_defaults(flow.function.args).get(param)
    return given.value if isinstance(given, ast.Constant) else None


def are_found_positions(node: Node) -> bool:
    """Tell whether a value is positions that an operator found: ``argsort(x)``, ``topk(x)[1]``.

    They are int64 and do not count from the end.
    """
    if isinstance(node.value, tuple) and "dtype" in node.value:
        return False
    if node.op == Op.ITEM and node.value == 1:
        source = node.args[0]
        along = len(source.args) > 1 and type(source.args[1].value) is int
        return source.op in {"topk", "sort", "kthvalue"} or (source.op in {"max", "min"} and along)
    if node.op == Op.GETITEM:
        return _is_tuple_of_positions(node.args[0]) and type(node.args[1].value) is int
    if node.op == "nonzero":
        return not _is_tuple_of_positions(node)
    return node.op in operators.POSITIONS


def _is_tuple_of_positions(node: Node) -> bool:
    """Tell whether a value is ``where(mask)``."""
    as_tuple = node.op == "nonzero" and node.args[-1].value is True
    return as_tuple or (node.op == "where" and len(node.args) == 1)


def is_position(node: Node) -> bool | None:
    """Tell whether a tensor holds positions that do not count from the end."""
    while node.op in operators.KEEPS or (node.op == Op.CAST and "int64" in str(node.args[1].value)):
        node = node.args[0]
    if node.op == Op.GETITEM and is_position(node.args[0]):
        return True  # some of them: ``positions[kept]``
    return True if are_found_positions(node) else None


def is_selection(node: Node) -> bool:
    """Tell whether a value is what a mask picks of a tensor: ``positions[labels == 0]``.

    As long as the mask has true elements, it fits no tensor as a mask of it.
    """
    index = node.args[1] if node.op == Op.GETITEM else None
    return index is not None and index.op in operators.COMPARISONS | {Op.COMPARE}


def is_of_configuration(node: Node) -> bool:
    """Tell whether a value is a setting, which holds no tensors: ``self.config.pad_code``."""
    by_key = node.op == Op.GETITEM and isinstance(node.args[1].value, str)
    owner = node.args[0] if node.op == Op.ATTR or by_key else None
    return (
        owner is not None
        and owner.op in {Op.ATTR, Op.PARAM}
        and bool(_CONFIG.search(str(owner.value)))
    )


def is_used_as_index(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether the function hands a tensor, or what it is a part of, over as positions."""
    return _root(node) in _indices(flow)


@lru_cache(maxsize=4)
def _indices(flow: FunctionFlow) -> frozenset[Node]:
    """Return what operators take as positions: ``x.index_copy_(0, positions, rows)``."""
    return frozenset(
        _root(e.node.args[2])
        for op in _BY_POSITION
        for e in flow.by_operation.get(op, ())
        if len(e.node.args) > 2  # noqa: PLR2004 - tensor, dimension, positions
    )


def _root(node: Node) -> Node:
    while node.op in operators.KEEPS or node.op == Op.GETITEM:
        node = node.args[0]
    return node


def is_count(flow: FunctionFlow, node: Node) -> bool | None:
    """Tell whether a value is a setting that counts something: ``self.config.num_heads``."""
    owner = node.args[0]
    is_setting = owner.op in {Op.ATTR, Op.PARAM} and bool(_CONFIG.search(str(owner.value)))
    if COUNT.search(str(node.value)):
        return True if is_setting or is_plain_attribute(flow, node) else None
    if is_setting:
        return True if _LENGTH.search(str(node.value)) else None
    is_own = owner.op == Op.PARAM and owner.value == "self" and flow.cls is not None
    values = list_assigned(flow.names, flow.cls, str(node.value)) if is_own and flow.cls else ()
    found = [_is_setting(value) for _, value in values]
    return True if found and all(found) else None


def _is_setting(value: ast.expr | None) -> bool:
    """Tell whether code is a field of a configuration, which holds no tensors."""
    match value:
        case ast.Attribute(ast.Name(owner) | ast.Attribute(_, owner)):
            return bool(_CONFIG.search(owner))
    return False


def is_device(node: Node) -> bool:
    """Tell whether a value is a device, not a dtype or a tensor."""
    if node.op in {Op.ATTR, Op.PARAM, Op.GLOBAL}:
        return str(node.value).rpartition(".")[2].endswith("device")
    if node.op == Op.PHI:  # ``torch.device("cuda") if x.is_cuda else torch.device("cpu")``
        return all(map(is_device, node.args[1:]))
    return node.op == "device" or (node.op == Op.CONST and isinstance(node.value, str))
