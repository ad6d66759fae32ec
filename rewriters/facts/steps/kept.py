"""What a step computes only once, and keeps: ``if self.mask is None: self.mask = ...``."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import children, holds_line, nodes_of, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow

_FIRST_STEP = re.compile(r"len\((self\.)?state(\[\w+\])?\) == 0|not (self\.)?state(\[\w+\])?")
"""What an optimizer asks before it makes what it keeps of a parameter."""
_STATE = re.compile(r"'\w+' in (self\.)?(param_)?(group|state)s?(\[\w+\])?")
"""What it asks before it goes on with that."""
_FOR_INIT = "init_table"
"""The caller of functions that a table of the module holds for ``__init__``."""


def is_kept(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line computes what is kept: ``if self.mask is None: self.mask = ...``.

    So it does behind ``if len(self.table) >= n: return``, where ``self.table`` is made anew, and in
    ``if n > self.n: self.n = n``, or a method that is called there alone.
    """
    if line and (_is_grown(flow, line) or _is_called_to_keep(flow)):
        return True
    tests = [node for node in nodes_of(flow.function) if isinstance(node, ast.If)]
    around = (node for node in tests if holds_line(node.body, line))
    others = (node for node in tests if holds_line(node.orelse, line))
    if any(_STATE.fullmatch(ast.unparse(node.test)) for node in others):
        return True
    return any(
        _FIRST_STEP.fullmatch(ast.unparse(node.test))
        or _list_asked_for(node.test) & _list_set(node.body)
        or _is_switched(node)
        for node in around
    )


def _is_switched(test: ast.If) -> bool:
    """Tell whether a branch runs once: ``if self.is_first: self.is_first = False``."""
    match test.test:
        case ast.Attribute(ast.Name("self")) as flag:
            last = False
        case ast.UnaryOp(ast.Not(), ast.Attribute(ast.Name("self")) as flag):
            last = True
        case _:
            return False
    return any(
        isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Constant)
        and s.value.value is last
        and ast.unparse(flag) in map(ast.unparse, s.targets)
        for s in test.body
    )


def is_called_by(flow: FunctionFlow, names: re.Pattern[str]) -> bool:
    """Tell whether nothing in a class but what has one of the names calls a method.

    ``self.scale(freqs)`` in ``rope_init`` and ``__init__``; so for a function of a module,
    ``unpack(w)`` in ``process_weights_after_loading``.
    """
    name = flow.function.name
    if flow.cls is None and flow.names.tree is not None and "<locals>" not in flow.qualname:
        known = list_callers(flow.names.tree).get(name, frozenset())
        return bool(known) and all(map(names.fullmatch, known))
    if flow.cls is None or name == "forward" or flow.function not in flow.cls.body:
        return False
    callers: set[str] = set()
    for method in (m for m in flow.cls.body if isinstance(m, FunctionNode)):
        nodes = list(nodes_of(method))
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        own = (n for n in nodes if isinstance(n, ast.Attribute) and n.attr == name)
        for node in own:
            if ast.unparse(node.value) in {"self", "cls", flow.cls.name}:
                if id(node) not in called:
                    return False  # ``self.act = self._gelu``: who knows who calls that
                callers.add(method.name)
    return bool(callers) and all(names.fullmatch(c) or c == "__init__" for c in callers)


@lru_cache(maxsize=2)
def list_callers(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Return which functions call a name that a module reads, "" for the module and who knows.

    Who hands a function on, ``self.attend = flash_attention``, does not say who calls it.
    """
    found: dict[str, set[str]] = {}
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    for code, within in todo:  # grows
        called = code.func if code.__class__ is ast.Call else None
        for node in children(code):
            if node.__class__ is ast.Name:
                if node.ctx.__class__ is ast.Load:
                    known = node is called or within == _FOR_INIT
                    found.setdefault(node.id, set()).add(within if known else "")
            elif node.__class__ is not ast.Constant:
                todo.append((node, _name_caller(node) or within))
    return {name: frozenset(callers) for name, callers in found.items()}


def _name_caller(code: ast.AST) -> str:
    """Return the name of a function, or what stands for ``ROPE_INIT_FUNCTIONS = {"yarn": f}``."""
    match code:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
            return _FOR_INIT if "INIT" in name.split("_") else ""
    return ""


def _is_called_to_keep(flow: FunctionFlow) -> bool:
    """Tell whether what a method computes or sets is kept wherever its class calls it.

    ``if n > self.n: self.update(n)`` of ``def update(self, n): self.n = n``, and
    ``if self.table is None: self.table = self.compute(n)``; ``__init__`` may call it as well.
    """
    name, cls = flow.function.name, flow.cls
    if cls is None or name == "forward":
        return False
    calls = [code for code in nodes_of(cls) if _calls_own(code, cls.name, name)]
    if not calls:
        return False
    made = _list_set(flow.function.body)
    kept = {
        id(inner)
        for code in nodes_of(cls)
        if isinstance(code, ast.If)
        and (_list_asked_for(code.test) & (made | _list_set(code.body)) or _is_switched(code))
        for inner in walk(*code.body)
    }
    first = (s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "__init__")
    kept.update(id(inner) for method in first for inner in walk(method))
    return all(id(call) in kept for call in calls)


def _calls_own(code: ast.AST, cls: str, name: str) -> bool:
    """Tell whether code calls a method of its own class: ``self.update(n)``, ``Table.make(n)``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name(owner), called)):
            return called == name and owner in {"self", "cls", cls}
    return False


def _is_grown(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line is reached only if what an attribute holds does not suffice."""
    body = flow.function.body
    before = [s for s in body if isinstance(s, ast.If) and (s.end_lineno or line) < line]
    if not before:
        return False
    made = {
        ast.unparse(target)
        for s in body
        if isinstance(s, ast.Assign) and (s.end_lineno or s.lineno) >= line
        for target in s.targets
        if isinstance(target, ast.Attribute)
    }
    return any(
        isinstance(leave, ast.If)
        and isinstance(leave.body[-1], ast.Return)
        and isinstance(leave.body[-1].value, ast.Constant | None)
        and made & {ast.unparse(n) for n in walk(leave.test) if isinstance(n, ast.Attribute)}
        for outer in before
        for leave in walk(outer)
    )


def _list_asked_for(test: ast.expr) -> set[str]:
    """Return what a test compares with ``None``, or misses: ``not hasattr(self, "queue")``.

    So it does in ``key not in self.tables``, and, of what has a size, in ``n > self.n``.
    """
    found: set[str] = set()
    for code in walk(test):
        match code:
            case ast.Compare(left, [ast.Is(), *_]):
                found.add(ast.unparse(left))
            case ast.Compare(_, [ast.NotIn()], [table]):
                found.add(ast.unparse(table))
            case ast.Compare(left, [ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], [right]):
                sides = (side for side in (left, right) if isinstance(side, ast.Attribute))
                found |= {ast.unparse(side) for side in sides}
            case ast.UnaryOp(
                ast.Not(), ast.Call(ast.Name("hasattr"), [owner, ast.Constant(str(name))])
            ):
                found.add(f"{ast.unparse(owner)}.{name}")
    return found


def _list_set(body: Sequence[ast.stmt]) -> set[str]:
    """Return what statements keep: attributes, also ``self.register_buffer("name", x)``, tables.

    What counts up, ``self.n = self.n + 1``, is another thing each time.
    """
    found: set[str] = set()
    for statement in body:
        match statement:
            case ast.Assign(targets, value):
                read = {ast.unparse(n) for n in walk(value) if isinstance(n, ast.Attribute)}
                found |= {ast.unparse(t) for t in targets if isinstance(t, ast.Attribute)} - read
                rows = (t for t in targets if isinstance(t, ast.Subscript))
                found |= {ast.unparse(row.value) for row in rows}
            case ast.Expr(
                ast.Call(ast.Attribute(owner, "register_buffer"), [ast.Constant(str(name)), *_], _)
            ):
                found.add(f"{ast.unparse(owner)}.{name}")
    return found
