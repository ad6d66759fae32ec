"""Walking and copying a syntax tree: what ``ast`` and ``copy`` do, in a third of the time."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_Node = TypeVar("_Node", bound=ast.AST)
# Fields that never hold a node, or a sign without a place in the source: ``Load``, ``Add``, ``Eq``.
_LEAVES = frozenset({"attr", "ctx", "id", "kind", "op", "ops", "type_comment"})
_INNER_FIELDS: Mapping[type, Sequence[str]] = {
    kind: () if kind is ast.Constant else tuple(n for n in kind._fields if n not in _LEAVES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


@lru_cache(maxsize=16)
def parse_once(text: str) -> ast.Module:
    """Return the syntax of a text, one tree for all who read it: nobody may change it.

    Raises:
        SyntaxError: it is no Python.
        ValueError: it holds a zero.

    """
    return ast.parse(text)


def copy_tree(node: _Node) -> _Node:
    """Return a node and all below it anew: what ``copy.deepcopy`` does, five times as fast."""
    fields = {
        name: [copy_tree(item) if isinstance(item, ast.AST) else item for item in value]
        if value.__class__ is list
        else copy_tree(value)
        if isinstance(value, ast.AST)
        else value
        for name, value in vars(node).items()
    }
    return type(node)(**fields)


def last_name(code: ast.expr) -> str:
    """Return the last part of a dotted name, "" if an expression is none."""
    match code:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def root_name(code: ast.AST) -> str:
    """Return the name that an expression begins with: ``x`` of ``x[0].view(-1)``."""
    while True:
        match code:
            case ast.Attribute(inner) | ast.Subscript(inner) | ast.Starred(inner):
                code = inner
            case ast.Call(ast.Attribute(inner)):
                code = inner
            case _:
                return code.id if isinstance(code, ast.Name) else ""


@lru_cache(maxsize=256)  # the functions of a large module
def nodes_of(root: ast.AST) -> Sequence[ast.AST]:
    """Return what ``walk`` yields of a function, class or module: many ask about the same one.

    For trees that nobody changes.
    """
    return tuple(walk(root))


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands right in a node, without contexts and operators."""
    for name in _INNER_FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            yield value
        elif value.__class__ is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item


def holds_line(block: Sequence[ast.stmt], line: int) -> bool:
    """Tell whether a line is of a block of statements: of the body of a test, say."""
    return bool(block) and block[0].lineno <= line <= (block[-1].end_lineno or line)


def list_indexes(index: ast.expr) -> list[ast.expr]:
    """Return ``i`` and ``j`` of the index of ``x[i, j]``, the one index of ``x[i]``."""
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def list_names(root: ast.AST) -> set[str]:
    """Return the plain names that stand in some code."""
    return {n.id for n in walk(root) if isinstance(n, ast.Name)}


def find_unused_name(wanted: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: ``places_`` where there is a ``places``."""
    while wanted in taken:
        wanted += "_"
    return wanted


def list_defaults(given: ast.arguments) -> dict[str, ast.expr]:
    """Return the parameters that a call may leave out, with what they are then."""
    positional = [*given.posonlyargs, *given.args]
    optional = positional[len(positional) - len(given.defaults) :]
    found = {a.arg: d for a, d in zip(optional, given.defaults, strict=True)}
    keywords = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return found | {a.arg: d for a, d in keywords if d is not None}


def list_handed(given: ast.arguments, call: ast.Call) -> dict[str, ast.expr]:
    """Return what a call hands in by the names of the parameters, ``self`` and ``cls`` aside."""
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    named = {k.arg: k.value for k in call.keywords if k.arg is not None}
    return {**dict(zip(names, call.args, strict=False)), **named}


def list_stored_names(root: ast.AST) -> set[str]:
    """Return the plain names that some code assigns to."""
    return {n.id for n in walk(root) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


SIMPLE_STATEMENTS = frozenset(
    {ast.AnnAssign, ast.Assert, ast.Assign, ast.AugAssign, ast.Delete, ast.Expr, ast.Raise}
    | {ast.Return}
)
"""What holds no other statement, for ``walk`` to leave closed: most of the nodes are in them."""
_BINDING = frozenset(
    {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias, ast.ExceptHandler}
    | {ast.MatchAs, ast.MatchStar, ast.MatchMapping}
)


def names_bound_in(root: ast.AST) -> set[str]:
    """Return every name that some code binds, in whatever way but as a parameter."""
    found: set[str | None] = set()
    for node in walk(root):
        if node.__class__ is ast.Name:
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            continue
        if node.__class__ not in _BINDING:
            continue
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.alias():
                found.add((node.asname or node.name).split(".")[0])
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                found.add(node.name)
            case ast.MatchMapping(rest=rest):
                found.add(rest)
    return {name for name in found if name}


def statements_below(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements in the blocks of a statement, not those further in."""
    found: list[ast.stmt] = []
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            found.append(node)
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            found += node.body
    return found


def walk(*roots: ast.AST, closed: Collection[type] = ()) -> Iterator[ast.AST]:
    """Yield nodes and all below them, breadth first, without contexts and operators.

    Nothing is yielded that stands in a node of a ``closed`` type.
    """
    todo = list(roots)
    push = todo.append
    for node in todo:  # grows
        yield node
        kind = node.__class__
        if kind in closed:
            continue
        for name in _INNER_FIELDS[kind]:
            value = getattr(node, name, None)
            if value is None:
                continue
            if value.__class__ is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        push(item)
            elif isinstance(value, ast.AST):
                push(value)


def is_scalar(code: ast.expr) -> bool:
    """Tell whether code is a number that is written out: ``-1``, ``1.0 if a else 2.0``."""
    if isinstance(code, ast.UnaryOp):
        return is_scalar(code.operand)
    if isinstance(code, ast.IfExp):
        return is_scalar(code.body) and is_scalar(code.orelse)
    return isinstance(code, ast.Constant)
