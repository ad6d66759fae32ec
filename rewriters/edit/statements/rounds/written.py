"""What a loop writes into: names whose values a round may find changed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_stored_names,
    names_bound_in,
    root_name,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

    Loop = ast.For | ast.AsyncFor | ast.While

_SIZES = frozenset({"shape", "size", "dim", "ndim"})
_ABOUT = _SIZES | {"device", "dtype"}
"""What is read of a tensor without what it holds."""
_BUFFERS = frozenset({"empty", "empty_like", "new_empty", "new_zeros", "zeros", "zeros_like"})
"""What makes memory that something is to be written into."""
_LEARNING = frozenset({"backward", "step", "zero_grad"})
"""What changes weights, or frees the graph of a value that is shared."""
_KEEPING = frozenset({"append", "extend", "insert", "add", "setdefault", "put"})
_WRITES_FIRST = frozenset({"setattr", "delattr", "setitem", "all_reduce", "broadcast", "shuffle"})
"""Functions that change what they get first."""
_MODULES = frozenset({"F", "init", "nn", "torch"})
"""So do those of these that are called like a method that does."""
_RESIZES = frozenset({"cat", "concat", "concatenate", "interpolate", "narrow", "pad", "upsample"})
"""What makes something longer or shorter of what it gets."""


def is_left_alone(here: Surroundings, code: Loop, names: set[str]) -> bool | None:
    """Tell whether a loop neither binds nor writes into what some names are; None: perhaps."""
    others = None if names & names_bound_in(code) else _list_also_written(here, code, names)
    if others is None:
        return False
    nodes = list(walk(code))
    given = [*list_given(here, nodes), *(c.func for c in _list_writing_calls(here, nodes))]
    apart = all(_is_own(here, code, name) for name in others)
    return None if not apart or any(read_whole(a) & names for a in given) else True


def changes(here: Surroundings, code: Loop, names: set[str]) -> bool:
    """Tell whether the loop may write into one of these, or keeps it beyond the round."""
    others = _list_also_written(here, code, names)
    return others is None or not all(_is_own(here, code, name) for name in others)


def _list_also_written(here: Surroundings, code: Loop, names: set[str]) -> set[str] | None:
    """Return what else a loop writes into, None if it keeps one of these or writes into it."""
    names = names - here.flow.names.imports.keys()
    written = set(list_written(code))
    if "" in written or written & names or any(name in here.flow.captured for name in names):
        return None
    if any(_is_filled_by_others(here, code, name) for name in names):
        return None
    made = set[str]()
    for node in walk(code):
        match node:
            case ast.Assign(targets, value):
                own = set[str]().union(*map(list_stored_names, targets))
                made |= own
                if own & written and _mentions(value, names):
                    return None  # ``row = table[0]; row.zero_()``
            case ast.Call(ast.Attribute(_, method), arguments):
                if method in _LEARNING or (
                    method in _KEEPING and any(root_name(a) in names for a in arguments)
                ):
                    return None
            case ast.Yield(ast.expr() as value) | ast.Return(ast.expr() as value):
                if _mentions(value, names):
                    return None
    return written - made


def _is_filled_by_others(here: Surroundings, code: Loop, name: str) -> bool:
    """Tell whether a name is memory that some call got to write into: ``wp.from_torch(out)``.

    What that call made of it writes as well, wherever it is handed in.
    """
    node = _value_before(here, code, name)
    if node is None or node.op.removesuffix("(*)") not in _BUFFERS:
        return False
    return any(name in read_whole(argument) for argument in list_given(here, here.nodes))


def list_written(code: ast.AST) -> Iterator[str]:
    """Yield the names through which tensors are written to in place, "" where there is none."""
    for node in walk(code):
        match node:
            case ast.AugAssign(target):
                yield root_name(target)
            case ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store()):
                yield root_name(node)
            case ast.Call(function, [first, *_]) if last_name(function) in _WRITES_FIRST:
                yield root_name(first)
            case ast.Call(ast.Attribute(owner, method), arguments, keywords):
                if method.endswith("_") and not method.endswith("__"):
                    # ``nn.init.zeros_(x)`` as well as ``x.zero_()``
                    of_module = root_name(owner) in _MODULES and arguments
                    yield root_name(arguments[0] if of_module else owner)
                yield from (root_name(k.value) for k in keywords if k.arg == "out")


def _is_own(here: Surroundings, code: Loop, name: str) -> bool:
    """Tell whether what a name is before the loop shares memory with nothing else."""
    node = _value_before(here, code, name)
    return node is not None and _is_new(node)


def _value_before(here: Surroundings, code: Loop, name: str) -> Node | None:
    """Return what a name is where a loop begins."""
    at = (e.names for e in here.flow.evaluations if e.statement is code)
    return next((names[name] for names in at if name in names), None)


def _is_new(node: Node) -> bool:
    if node.op == Op.PHI:
        return all(map(_is_new, node.args[1:]))
    if node.op == Op.AGAIN:
        return _is_new(node.args[0])
    return node.op.removesuffix("(*)") in operators.NEW | {Op.CONST, Op.LIST, Op.CONTAINER}


def _mentions(code: ast.expr, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in walk(code))


def read_whole(code: ast.expr) -> set[str]:
    """Return the names of which more is read than shape, device and dtype."""
    about = {id(n.value) for n in walk(code) if isinstance(n, ast.Attribute) and n.attr in _ABOUT}
    return {n.id for n in walk(code) if isinstance(n, ast.Name) and id(n) not in about}


def list_given(here: Surroundings, nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield what calls get that may write into it."""
    for call in _list_writing_calls(here, nodes):
        yield from (*call.args, *(k.value for k in call.keywords))


def _list_writing_calls(here: Surroundings, nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls of anything but operators that write into nothing."""
    for node in nodes:
        if isinstance(node, ast.Call) and not _is_known(here, node):
            yield node


def _is_known(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a call is of an operator that writes into nothing."""
    node = here.value(call)
    if node is None:
        return False
    op = node.op.removesuffix("(*)")
    return (
        (op in operators.TABLE and not op.endswith("_"))
        or op in set(Op) - {Op.CALL, Op.OPAQUE}
        or op.startswith("py:")
    )


def reads_size_that_changes(loop: Loop, code: ast.expr) -> bool:
    """Tell whether code reads the size of what each round makes longer or shorter."""
    sized = {
        root_name(n.value) for n in walk(code) if isinstance(n, ast.Attribute) and n.attr in _SIZES
    }
    return any(
        isinstance(n, ast.Assign)
        and sized & set().union(*map(list_stored_names, n.targets))
        and any(_resizes(part, sized) for part in walk(n.value))
        for n in walk(loop)
    )


def _resizes(code: ast.AST, names: set[str]) -> bool:
    match code:
        case ast.Call(function):
            return last_name(function) in _RESIZES
        case ast.Subscript(ast.Name(name)):  # ``active = active[keep]``
            return name in names
    return False
