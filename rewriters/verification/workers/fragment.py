"""The statements that a rewrite changes, as a function of what they read.

Where the function around them cannot be called (its class comes from a package that is missing,
its arguments are objects that nobody can invent), they are verified alone: for
``areas[mask == 0] = INF`` in a method of 80 lines that is ::

    def npufix_fragment_(areas, mask):
        areas[mask == 0] = INF
        return (areas,)

What is read of ``self`` becomes an argument, and what is read of a name that only a run as a
program has (``args.lr``). A call that both texts make of a method or of another package is not
made: what it gets is a result, and what it returns an argument. What else is asked of objects has
no fragment. Neither is there one where anything else differs between the two texts, but for new
imports, new functions and what other functions do, which is asked of them.
"""

from __future__ import annotations

import ast
import builtins
import copy
from dataclasses import replace
from keyword import iskeyword
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import list_defaults, list_stored_names
from npufix.rewriters.verification.inputs.source.slicing import list_bound_names
from npufix.rewriters.verification.inputs.source.usage import OF_TENSORS
from npufix.rewriters.verification.workers.alike import find_function, leave_one_change
from npufix.rewriters.verification.workers.configured import make_optimizers
from npufix.rewriters.verification.workers.definitions import (
    Block,
    Calls,
    find_definitions,
    find_masks,
    list_assigned_first,
    list_attributes,
    list_foreign,
    list_of_comprehensions,
    list_of_loops,
    list_of_objects,
    list_written_in_place,
    path_of,
    sink_empty,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job

NAME = "npufix_fragment_"
_BLOCKS = ("body", "orelse", "finalbody")
_FORBIDDEN = (
    ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.FunctionDef, ast.ClassDef,
    ast.AsyncFunctionDef, ast.Delete,
)  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Window(NamedTuple):
    """Where two versions of a function differ."""

    path: tuple[tuple[int, str], ...]
    """From the body of the function down: the statement, and which block of it."""
    before: int
    """How many statements of the block are the same in front."""
    after: int
    """And behind."""


class _Head(NamedTuple):
    """What the statements are a function of."""

    arguments: list[ast.arg]
    defaults: list[ast.expr]
    """Of the last of them."""
    results: list[str]
    attributes: dict[tuple[str, ...], str]
    """Arguments in place of what is read of objects: ``("self", "buffers", "host")``."""


def narrow(job: Job, *, defined: bool = False) -> Job | None:
    """Return the same question about the changed statements alone; None if they cannot stand so.

    ``defined`` asks of them behind what defines what they read, where something does.
    """
    if job.qualname == MODULE:
        return None if defined else make_optimizers(job, NAME)
    texts = [job.original, job.patched, *filter(None, [job.portable]), *job.probes]
    try:
        trees = [ast.parse(text) for text in texts]
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions = [f for tree in trees if (f := find_function(tree, job.qualname)) is not None]
    # Where other functions of the file are changed, too, this one is asked of by itself.
    alone = [leave_one_change(trees[0], tree, job.qualname) for tree in trees[1:]]
    if len(functions) != len(trees) or None in alone:
        return None
    for at, (tree, one) in enumerate(zip(trees[1:], alone, strict=True), 1):
        if one is not None and one is not tree:
            texts[at] = ast.unparse(one)
    for function in functions:
        sink_empty(function.body)
    first = functions[0]
    windows = [w for f in functions[1:] if (w := _differing(first.body, f.body)) is not None]
    if not windows:
        return None
    window = _until_written(first, _join(first.body, windows))
    blocks = _without_calls([_cut(f.body, window) for f in functions], trees[0], first)
    front = _definitions(first, window, blocks, trees[0]) if defined else []
    head = _head(first, blocks, trees[0], front)
    if head is None or bool(front) is not defined:
        return None
    made = [_append(text, block, head, front) for text, block in zip(texts, blocks, strict=True)]
    original, patched, *rest = made
    return replace(
        job,
        original=original,
        patched=patched,
        portable=rest.pop(0) if job.portable else "",
        probes=tuple(rest),
        vouched=tuple(dict.fromkeys((*job.vouched, *job.known))) if rest else job.vouched,
        qualname=NAME,
        lines_original=_lines(original, len(front)),
        lines_patched=_lines(patched, len(front)),
        # What it raises for arguments that the code around it never passes counts for nothing.
        by_hand=False,
    )


def _differing(mine: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> _Window | None:
    """Return the smallest block that holds all differences; None if there are none."""
    before, after = 0, 0
    most = min(len(mine), len(other))
    while before < most and _same(mine[before], other[before]):
        before += 1
    if before == len(mine) == len(other):
        return None
    while after < most - before and _same(mine[-1 - after], other[-1 - after]):
        after += 1
    if len(mine) == len(other) == before + after + 1:
        field = _only_block(mine[before], other[before])
        if field:
            inner = _differing(getattr(mine[before], field), getattr(other[before], field))
            if inner is not None:
                return inner._replace(path=((before, field), *inner.path))
    return _Window((), before, after)


def _same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def _only_block(mine: ast.stmt, other: ast.stmt) -> str:
    """Return the block in which two statements differ; "" if they differ elsewhere too."""
    if type(mine) is not type(other) or isinstance(mine, (_Function, ast.ClassDef)):
        return ""
    fields = [f for f in _BLOCKS if isinstance(getattr(mine, f, None), list)]
    differ = [
        f
        for f in fields
        if list(map(ast.dump, getattr(mine, f))) != list(map(ast.dump, getattr(other, f)))
    ]
    heads = [copy.copy(one) for one in (mine, other)]
    for head in heads:
        for field in fields:
            setattr(head, field, [])
    return differ[0] if len(differ) == 1 and _same(*heads) else ""


def _join(body: Sequence[ast.stmt], windows: Sequence[_Window]) -> _Window:
    """Return the smallest window around all."""
    path = windows[0].path
    for window in windows[1:]:
        same = (a == b for a, b in zip(path, window.path, strict=False))
        path = path[
            : next((i for i, s in enumerate(same) if not s), min(len(path), len(window.path)))
        ]
    length = len(_block(body, path))
    ends = [_ends(w, len(path), length) for w in windows]
    return _Window(path, min(b for b, _ in ends), min(a for _, a in ends))


def _ends(window: _Window, depth: int, length: int) -> tuple[int, int]:
    if len(window.path) == depth:
        return window.before, window.after
    at = window.path[depth][0]
    return at, length - at - 1


def _block(body: Sequence[ast.stmt], path: Sequence[tuple[int, str]]) -> Sequence[ast.stmt]:
    for at, field in path:
        body = getattr(body[at], field)
    return body


def _until_written(function: _Function, window: _Window) -> _Window:
    """Return a window that holds what later writes in place to what it makes: ``x += shift``."""
    block = _block(function.body, window.path)
    end = len(block) - window.after
    own = {n for s in block[window.before : end] for n in list_stored_names(s)}
    names = [[n for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in own] for s in block]
    writing = [i for i in range(end, len(block)) if any(list_written_in_place(names[i], function))]
    return window._replace(after=len(block) - max(writing, default=end - 1) - 1)


def _cut(body: Sequence[ast.stmt], window: _Window) -> list[ast.stmt]:
    block = _block(body, window.path)
    return list(block[window.before : len(block) - window.after])


def _definitions(
    function: _Function, window: _Window, blocks: Sequence[Sequence[ast.stmt]], tree: ast.Module
) -> list[ast.stmt]:
    """Return the statements in front of a window that define what it reads."""
    found = list[Block]()
    body, owner = function.body, None
    for at, field in (*window.path, (window.before, "")):
        found.append(Block(owner, body[:at]))
        if field:
            owner, body = body[at], getattr(body[at], field)
    nodes = [n for block in blocks for s in block for n in ast.walk(s)]
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    named = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    own = {*(a.arg for a in _arguments(function)), *list_stored_names(function)}
    methods = {f.name for f in ast.walk(tree) if isinstance(f, _Function)}
    return find_definitions(
        found,
        read & named,
        Calls(list_foreign(tree, next(_arguments(function), None)), own, methods),
    )


_GIVEN, _MADE = "npufix_given_", "npufix_made_"


def _without_calls(
    blocks: list[list[ast.stmt]], tree: ast.Module, function: _Function
) -> list[list[ast.stmt]]:
    """Return blocks in which calls that all of them make once, in one order, are not made.

    ``y = self.loss(x[m])`` becomes ``npufix_given_.append((x[m],)); y = npufix_made_0``, for the
    same arguments give the same result. Not so in loops, which rewrites leave out, and beside
    writes in place, which would change what was handed over.
    """
    foreign = list_foreign(tree, next(_arguments(function), None))
    found = [[c for s in block for c in ast.walk(s) if _is_foreign(c, foreign)] for block in blocks]
    loops = (ast.For, ast.While, ast.comprehension, ast.Lambda)
    nodes = [n for block in blocks for s in block for n in ast.walk(s)]
    numbered = [_number(calls, found[0], block) for calls, block in zip(found, blocks, strict=True)]
    known = [numbers for numbers in numbered if numbers is not None]
    unknown = not found[0] or len(known) < len(blocks)
    if unknown or any(isinstance(n, loops) or _writes(n) for n in nodes):
        return blocks
    made: list[list[ast.stmt]] = []
    for block, numbers in zip(blocks, known, strict=True):
        # Copies keep the order of ``ast.walk``, in which calls are numbered.
        taken = _Taking(numbers)
        made.append([ast.parse(f"{_GIVEN} = []").body[0], *(taken.visit(s) for s in block)])
    return made


def _number(
    calls: Sequence[ast.Call], first: Sequence[ast.Call], block: Sequence[ast.stmt]
) -> dict[int, int] | None:
    """Return which calls of the first text those of another are; None if they are others.

    A probe asks in front of the code, ``npufix_operands_(x=f(y))``, and ends there.
    """
    if any(isinstance(n, ast.Name) and n.id == PROBE for s in block for n in ast.walk(s)):
        texts = list(map(ast.unparse, first))
        every = [ast.unparse(call) for call in calls]
        known = set(every) <= set(texts)
        return {id(c): texts.index(t) for c, t in zip(calls, every, strict=True)} if known else None
    called = [[ast.unparse(call.func) for call in some] for some in (calls, first)]
    return {id(c): n for n, c in enumerate(calls)} if called[0] == called[1] else None


def _is_foreign(code: ast.AST, names: set[str]) -> TypeGuard[ast.Call]:
    """Tell whether somebody else's function is called: ``self.loss(x)``, ``reduce_mean(x)``."""
    if not isinstance(code, ast.Call):
        return False
    owner = code.func
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and owner.id in names


def _writes(code: ast.AST) -> bool:
    match code:
        case ast.AugAssign() | ast.Subscript(ctx=ast.Store()) | ast.keyword("out"):
            return True
        case ast.Call(ast.Attribute(attr=name)):
            return name.endswith("_") and not name.startswith("_")
    return False


class _Taking(ast.NodeTransformer):
    """Puts ``(given.append((x, {"weight": w})), made_0)[1]`` for ``self.loss(x, weight=w)``."""

    def __init__(self, numbers: dict[int, int]) -> None:
        self._numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.expr:
        number = self._numbers.get(id(node))
        new = copy.copy(node)
        new.args = [self.visit(a) for a in node.args]
        new.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        if number is None:
            new.func = self.visit(node.func)
            return new
        if not new.args and not new.keywords:
            return ast.Name(f"{_MADE}{number}", ast.Load())
        named = ast.Dict(
            [k.arg if k.arg is None else ast.Constant(k.arg) for k in new.keywords],
            [k.value for k in new.keywords],
        )
        made = ast.parse(f"({_GIVEN}.append(()), {_MADE}{number})[1]", mode="eval").body
        kept = next(n for n in ast.walk(made) if isinstance(n, ast.Call))
        kept.args = [ast.Tuple([*new.args, named], ast.Load())]
        return made


def _head(
    function: _Function,
    blocks: Sequence[Sequence[ast.stmt]],
    tree: ast.Module,
    front: Sequence[ast.stmt],
) -> _Head | None:
    """Return what statements, run behind others, read and leave; None if they are no function."""
    nodes = [n for block in (front, *blocks) for s in block for n in ast.walk(s)]
    if not blocks[0] or any(isinstance(n, _FORBIDDEN) for n in nodes) or any(map(_leaves, blocks)):
        return None
    arguments = {a.arg: a for a in _arguments(function)}
    inside = {id(n) for s in (*front, *blocks[0]) for n in ast.walk(s)}
    outer = [n for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in inside]
    bound = set(arguments) | {n.id for n in outer if isinstance(n.ctx, ast.Store)}
    scoped = list_of_comprehensions(function, *(s for block in blocks for s in block))
    bound -= scoped
    own = {n for block in blocks for s in block for n in list_stored_names(s)} - scoped
    # What is made in front, the statements may write to.
    written = {n for s in front for n in list_stored_names(s)} & {
        n.id for s in blocks[0] for n in ast.walk(s) if isinstance(n, ast.Name)
    }
    read = dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and n.id in bound)
    first = next(iter(arguments), "")
    instance = first if first in {"self", "cls"} else ""
    attributes: dict[tuple[str, ...], str] = {}
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    known = {n for s in tree.body if not _is_main(s) for n in list_bound_names(s)}
    unknown = sorted(names - bound - own - known - scoped - {*dir(builtins)})
    for owner in [
        *([instance] if instance in read else []),
        *unknown,
        *(n for n in read if n != instance),
    ]:
        found = list_attributes((owner,), nodes)
        if found is None and owner == instance:
            return None
        asked = {path[-1] for path in found or ()}
        if owner in read and owner != instance and OF_TENSORS.intersection(asked or {"T"}):
            continue
        taken = {*names, *own, *bound, *attributes.values()}
        for path in (inner for outer in found or () for inner in list_of_objects(outer, nodes)):
            attributes[path] = _argument_of(path, taken)
            taken.add(attributes[path])
    objects = {path[0] for path in attributes}
    free = [n for n in read if n not in {instance, *objects, *list_assigned_first(front)}]
    later = {n.id for n in outer if isinstance(n.ctx, ast.Load)}
    kinds = find_masks(function, {a.arg for a in _arguments(function)}, inside)
    made = [*attributes.values(), *(n for n in sorted(names) if n.startswith(_MADE))]
    # What is asked whether it is None may be None here, too.
    tested = {path_of(n.left) for n in nodes if isinstance(n, ast.Compare)}
    asked = {n for n in free if (n,) in tested}
    optional = [(n, d) for n, d in list_defaults(function.args).items() if n in asked]
    defaults = {n: d for n, d in optional if isinstance(d, ast.Constant)}
    given = [
        ast.arg(
            name, kinds.get(name) or (arguments[name].annotation if name in arguments else None)
        )
        for name in [*(n for n in free if n not in defaults), *made, *defaults]
    ]
    # ``a, b = x.unbind(-1)`` is ``a, b = x[..., 0], x[..., 1]``, but not where ``b += 1`` follows.
    if own & set(list_written_in_place(outer, function)):
        return None
    # What it reads, it may read again in the next round of a loop around it.
    counted = set[str]().union(
        *(list_stored_names(n.target) for n in nodes if isinstance(n, ast.For))
    )
    left = own & (later | set(read) | {_GIVEN}) - (counted & list_of_loops(function))
    if all(isinstance(s, ast.Assert) for s in blocks[0]):  # what it checks stays as it is
        left |= set(free)
    return _Head(given, [*defaults.values()], sorted(written | left), attributes)


def _argument_of(path: tuple[str, ...], taken: set[str]) -> str:
    """Return what the argument is called that stands for ``self.gain``, or ``gain["class"]``."""
    last = path[-1]
    return "_".join(path) if last in taken or iskeyword(last) else last


def _is_main(statement: ast.stmt) -> bool:
    """Tell whether a statement runs only where the file is started as a program."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _arguments(function: _Function) -> Iterator[ast.arg]:
    given = function.args
    yield from (*given.posonlyargs, *given.args, *given.kwonlyargs)
    yield from filter(None, (given.vararg, given.kwarg))


def _leaves(block: Sequence[ast.stmt]) -> bool:
    """Tell whether statements end, or go on with, a loop around them."""
    for statement in block:
        if isinstance(statement, ast.Break | ast.Continue):
            return True
        fields = ("orelse",) if isinstance(statement, ast.For | ast.While) else _BLOCKS
        inner = [getattr(statement, f, None) for f in fields]
        inner += [h.body for h in getattr(statement, "handlers", ())]
        if any(_leaves(b) for b in inner if isinstance(b, list)):
            return True
    return False


class _Renaming(ast.NodeTransformer):
    def __init__(self, attributes: dict[tuple[str, ...], str]) -> None:
        self._attributes = attributes

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._renamed(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self._renamed(node)

    def _renamed(self, node: ast.expr) -> ast.expr:
        name = self._attributes.get(path_of(node))
        if name is not None:
            return ast.Name(name, ast.Load())
        self.generic_visit(node)
        return node


def _append(text: str, block: Sequence[ast.stmt], head: _Head, front: Sequence[ast.stmt]) -> str:
    renaming = _Renaming(head.attributes)
    body = [renaming.visit(copy.deepcopy(statement)) for statement in (*front, *block)]
    if head.results:
        elements: list[ast.expr] = [ast.Name(name, ast.Load()) for name in head.results]
        body.append(ast.Return(ast.Tuple(elements, ast.Load())))
    made = ast.parse("def _(): pass")
    function = made.body[0]
    assert isinstance(function, ast.FunctionDef)  # noqa: S101 - the text above
    function.name = NAME
    function.args.args = list(head.arguments)
    function.args.defaults = list(head.defaults)
    function.body = body or function.body
    return f"{text.rstrip()}\n\n\n{ast.unparse(ast.fix_missing_locations(made))}\n"


def _lines(text: str, first: int) -> tuple[int, ...]:
    """Return the lines of all statements from one on, and of those within them."""
    function = find_function(ast.parse(text), NAME)
    body = function.body[first:] if function is not None else []
    return tuple(n.lineno for s in body for n in ast.walk(s) if isinstance(n, ast.stmt))
