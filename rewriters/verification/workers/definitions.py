"""The statements in front of changed ones that say what these read: sizes, numbers, masks.

Of ``mask[i, : n[i]].fill_(1)`` nobody knows how large ``mask`` is; of this, everybody does::

    size = x.shape[1]
    mask = torch.zeros([x.shape[0], size, size])
    for i in range(x.shape[0]):
        mask[i, : n[i]].fill_(1)

A statement is taken as it stands or not at all, and not where something left out, as a call of
``self.layer(mask)``, may have written to what it reads or makes: that stays an argument.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph.modules.syntax import list_stored_names
from npufix.rewriters.verification.inputs.source.slicing import list_used_names
from npufix.rewriters.verification.inputs.source.usage import OF_TENSORS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_METADATA = frozenset({"shape", "device", "dtype", "ndim", "size", "dim", "is_cuda", "is_npu"})
"""What no write in place changes."""
_PURE = frozenset({"torch", "F", "nn", "math", "np", "numpy", *dir(builtins)})
_OF_LISTS = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "add", "sort"}
)
_MASKS = frozenset({"isfinite", "isnan", "isinf", "isin", "logical_and", "logical_or", "bool"})
_OF_MASKS = frozenset({"all", "any", "view", "reshape", "unsqueeze", "squeeze", "flatten"})
_WHOLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.If)
_NEVER = (
    ast.Return, ast.Raise, ast.Assert, ast.Break, ast.Continue, ast.Try, ast.With, ast.While,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Delete, ast.Global,
    ast.Nonlocal, ast.Await, ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom,
)  # fmt: skip


_OWN = frozenset({"torch", "torch_npu", "mindspeed", "mx_driving", "numpy", "math"})
"""Packages whose functions are called, wherever a fragment runs."""


class Block(NamedTuple):
    """Statements that have run when those of interest do."""

    owner: ast.stmt | None
    """The statement that they are a part of; None: the function."""
    statements: Sequence[ast.stmt]


class Calls(NamedTuple):
    """Whose functions nobody can call, or knows."""

    foreign: Collection[str]
    """Names of objects and modules that are not here."""
    own: Collection[str]
    """Names that only the function around knows: what they hold may be a module, or anything."""
    methods: Collection[str]
    """Names of methods that may write to the object they belong to."""


def find_definitions(
    blocks: Sequence[Block], wanted: Collection[str], calls: Calls
) -> list[ast.stmt]:
    """Return statements to run before others that read ``wanted``, in their order.

    ``blocks`` go from the body of the function inwards.
    """
    taken: list[ast.stmt] = []
    needed, settled, changed = set(wanted), set[str](), set[str]()
    for owner, statements in reversed(blocks):
        for statement in reversed(statements):
            writes, reads, bound = (
                list_written(statement, calls),
                _read(statement),
                list_stored_names(statement),
            )
            every = reads | _read(statement, metadata=True)
            lost = settled & (writes | every) or changed & reads
            if needed & writes and not lost and _can_run(statement, calls):
                taken.insert(0, statement)
                # ``if more is not None: x = x + more`` may leave what it was.
                needed -= bound if isinstance(statement, ast.Assign) else set()
                needed |= every
                continue
            if changed & writes:  # ``rows = x.view(-1)`` before a write to ``rows``
                changed |= reads
                writes |= reads
            changed |= list_written(statement, calls, bindings=False)
            settled |= needed & writes
            needed -= writes
        if owner is not None:
            # What the rest of a loop writes, the round before has written; ``if (x := f(y)):``
            around = isinstance(owner, ast.For | ast.AsyncFor | ast.While | ast.Try)
            parts = [owner] if around else [
                n for n in ast.iter_child_nodes(owner) if isinstance(n, ast.expr | ast.withitem)
            ]  # fmt: skip
            writes = set[str]().union(*(list_written(part, calls) for part in parts))
            changed |= writes
            settled |= needed & writes
            needed -= writes
    return taken


def _can_run(statement: ast.stmt, calls: Calls) -> bool:
    nodes = list(ast.walk(statement))
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    stored = [n for n in nodes if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load)]
    return (
        isinstance(statement, _WHOLE)
        and not stored
        and not any(isinstance(n, _NEVER) for n in nodes)
        and not any(_is_foreign(f, calls) or getattr(f, "id", "") in calls.own for f in called)
    )


def list_written(statement: ast.AST, calls: Calls, *, bindings: bool = True) -> set[str]:
    """Return the names of what a statement may change, or binds."""
    found = list_stored_names(statement) if bindings else set[str]()
    for node in ast.walk(statement):
        match node:
            case ast.AugAssign(target):
                found.add(_root(target))
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                found.add(_root(node))
            case ast.keyword("out", value):
                found |= _read(value)
            case ast.Call(function, arguments, keywords):
                root, name = _root(function), getattr(function, "attr", "")
                if name in _OF_LISTS or (name.endswith("_") and not name.startswith("_")):
                    found.add(root)
                    # ``F.relu_(x)``
                    found |= set[str]().union(*map(_read, arguments)) if root in _PURE else set()
                if name in calls.methods:
                    found.add(root)
                named = isinstance(function, ast.Name) and root not in _PURE
                if named or _is_foreign(function, calls):
                    given = [*arguments, *(k.value for k in keywords)]
                    found |= set[str]().union(*map(_read, given))
    return found


def _is_foreign(function: ast.expr, calls: Calls) -> bool:
    """Tell whether nobody knows what is called: not so ``self.grid.to(x)``."""
    of_tensor = isinstance(function, ast.Attribute) and isinstance(
        function.value, ast.Attribute | ast.Subscript
    )
    known = of_tensor and getattr(function, "attr", "") in OF_TENSORS
    return _root(function) in calls.foreign and not known


def _read(code: ast.AST, *, metadata: bool = False) -> set[str]:
    """Return the names that are read; of what only sizes and the like are asked, if so wanted."""
    asked = {
        id(node.value)
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute)
        and node.attr in _METADATA
        and isinstance(node.value, ast.Name)
    }
    added = {id(n.target) for n in ast.walk(code) if isinstance(n, ast.AugAssign)}
    return {
        n.id
        for n in ast.walk(code)
        if isinstance(n, ast.Name)
        and (isinstance(n.ctx, ast.Load) or id(n) in added)
        and (id(n) in asked) is metadata
    }


def _root(node: ast.AST) -> str:
    """Return whose ``self.heads[0].size()`` is: ``self``; "" for what has no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def list_foreign(tree: ast.Module, first: ast.arg | None) -> set[str]:
    """Return the names of the object that a method is of, and of what other packages define."""
    foreign = {first.arg} & {"self", "cls"} if first is not None else set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "") if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                top = (alias.name if module is None else module or "").partition(".")[0]
                if top not in _OWN and top not in sys.stdlib_module_names:
                    foreign.add(alias.asname or alias.name.partition(".")[0])
    return foreign


def list_written_in_place(names: Sequence[ast.Name], function: ast.AST) -> Iterator[str]:
    """Yield which of some names are written to where they are: ``x[i] = 0``, ``x.T.mul_(2)``."""
    parents = {
        id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)
    }
    for name in names:
        node: ast.AST = name
        while True:
            outer = parents.get(id(node))
            match outer:
                case ast.AugAssign(target) if target is node:
                    yield name.id
                case ast.Subscript(value, ctx=ctx) if value is node:
                    if not isinstance(ctx, ast.Load):
                        yield name.id
                case ast.Attribute(attr=attr) | ast.keyword(arg=attr):
                    if attr == "out" or (attr or "").endswith("_"):
                        yield name.id
                case ast.Call(called) if called is node:
                    pass
                case _:
                    break
            node = outer


def list_of_loops(function: ast.AST) -> set[str]:
    """Return the names that are read only in loops over them, which nobody reads when they end."""
    free, held = set[str](), set[str]()
    for node, inside in _with_loops(function, frozenset()):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in inside:
            free.add(node.id)
        held |= inside
    return held - free


def _with_loops(code: ast.AST, inside: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield all nodes with the variables of the loops whose bodies they are in."""
    yield code, inside
    for child in ast.iter_child_nodes(code):
        bound = inside
        if isinstance(code, ast.For) and child in code.body:
            bound |= list_stored_names(code.target)
        yield from _with_loops(child, bound)


def find_masks(
    function: ast.AST, arguments: Collection[str], inside: Collection[int]
) -> dict[str, ast.expr]:
    """Return what names hold that are always assigned comparisons: masks."""
    found: dict[str, bool] = {}
    for node in ast.walk(function):
        if id(node) in inside or not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (n for target in targets for n in ast.walk(target)):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                is_mask = name in targets and node.value is not None and _compares(node.value)
                found[name.id] = found.get(name.id, True) and is_mask
    mask = ast.parse("torch.BoolTensor", mode="eval").body
    return {name: mask for name, is_mask in found.items() if is_mask and name not in arguments}


def _compares(value: ast.expr) -> bool:
    """Tell whether an expression compares tensors, or joins such comparisons: ``(a > b) & c``."""
    if isinstance(value, ast.BinOp):
        masks = ast.BitAnd | ast.BitOr | ast.BitXor | ast.Add | ast.Mult
        both = _compares(value.left), _compares(value.right)
        return isinstance(value.op, masks) and all(both)
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Invert) and _compares(value.operand)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        of_mask = value.func.attr in _OF_MASKS and _compares(value.func.value)
        return of_mask or value.func.attr in _MASKS
    return isinstance(value, ast.Compare) and not isinstance(
        value.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn
    )


def list_attributes(
    owner: tuple[str, ...], nodes: Sequence[ast.AST]
) -> list[tuple[str, ...]] | None:
    """Return what is read of an object; None if it is called, written to or handed on."""
    called = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    held = [n for n in nodes if len(path_of(n)) > 1 and path_of(n)[:-1] == owner]
    if any(id(n) in called or not isinstance(getattr(n, "ctx", None), ast.Load) for n in held):
        return None
    bare = sum(path_of(n) == owner for n in nodes)
    return list(dict.fromkeys(map(path_of, held))) if bare == len(held) else None


def list_of_objects(path: tuple[str, ...], nodes: Sequence[ast.AST]) -> list[tuple[str, ...]]:
    """Return what is read of an attribute that is an object itself: ``self.config.eps``."""
    found = list_attributes(path, nodes) or []
    if not found or OF_TENSORS.intersection(f[-1] for f in found):
        return [path]
    return [inner for one in found for inner in list_of_objects(one, nodes)]


def path_of(code: ast.AST) -> tuple[str, ...]:
    """Return ``("data", "image", "size")`` for ``data["image"].size``; () for anything else."""
    match code:
        case ast.Name(name):
            return (name,)
        case ast.Attribute(value, name) | ast.Subscript(value, ast.Constant(str(name))):
            owner = path_of(value)
            return (*owner, name) if owner and name.isidentifier() else ()
    return ()


def list_assigned_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements assign before they read them."""
    read, assigned = set[str](), set[str]()
    for statement in statements:
        names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        targets = list_stored_names(statement) if isinstance(statement, ast.Assign) else set()
        plain = targets - list_used_names(statement) - read
        read |= names - assigned - plain
        assigned |= plain
    return assigned


def list_of_comprehensions(*code: ast.AST) -> set[str]:
    """Return the names that nothing but comprehensions bind: nobody sees them outside."""
    nodes = [n for one in code for n in ast.walk(one)]
    own = {id(t) for n in nodes if isinstance(n, ast.comprehension) for t in ast.walk(n.target)}
    stored = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {n.id for n in stored if id(n) in own} - {n.id for n in stored if id(n) not in own}


def sink_empty(body: list[ast.stmt]) -> None:
    """Move ``found = []`` and ``k = 0`` to the statement that first needs it.

    A loop that is gone takes the list that it filled along, which may stand far above it.
    """
    for at in reversed(range(len(body))):
        match body[at]:
            case ast.Assign([ast.Name(name)], ast.List([]) | ast.Constant()):
                named = (
                    any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(s))
                    for s in body[at + 1 :]
                )
                further = next((n for n, is_named in enumerate(named) if is_named), 0)
                body.insert(at + further, body.pop(at))
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(body[at], field, None)
            if isinstance(inner, list):
                sink_empty(inner)
