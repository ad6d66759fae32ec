"""Which top-level statements of a module a definition needs, and what reads what lines make."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import parse_once, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npufix.rewriters.edit.job import Job

IMPORTS = (ast.Import, ast.ImportFrom)
_DOES = (ast.Expr, ast.If, ast.For, ast.While, ast.With)
"""Statements that do something, beside those that define."""
_OWN_GRADIENT = re.compile(r"(^|\.)(autograd\.)?Function$")


def slice_module(tree: ast.Module, target: str) -> list[ast.stmt]:
    """Return the top-level statements that ``target`` needs, in their order.

    A statement that changes a needed definition (``Norm.forward = ...``, ``register(Norm)``)
    belongs to it. What looks a name up in ``globals()`` may need every definition, and what looks
    it up in a registry those that enter themselves there: ``@register("rms")``.
    """
    bound, used, changes = _read_names(tree)
    entered, looked_up = _read_registries(tree)
    wanted, queue = set[int](), [(target, False)]
    seen: set[tuple[str, bool]] = set()
    while queue:
        name, looks = queue.pop()
        if (name, looks) in seen:
            continue
        seen.add((name, looks))
        for index in range(len(tree.body)):
            needed = name in bound[index] or name in changes[index]
            if (needed or (looks and name in entered[index])) and index not in wanted:
                wanted.add(index)
                queue.extend(
                    (used_name, used_name in looked_up[index]) for used_name in used[index]
                )
    names = {name for name, _ in seen}
    unresolved = names - set[str]().union(*bound)
    wanted |= {i for i, names in enumerate(bound) if "*" in names and unresolved}
    if "globals" in unresolved:
        wanted |= {i for i, s in enumerate(tree.body) if not isinstance(s, _DOES)}
    return [tree.body[index] for index in sorted(wanted)]


@lru_cache(maxsize=4)
def _read_names(tree: ast.Module) -> tuple[list[set[str]], list[set[str]], list[set[str]]]:
    """Return the names that each statement of a module binds, uses and changes."""
    bound = [list_bound_names(statement) for statement in tree.body]
    used = [list_used_names(statement) for statement in tree.body]
    imported = set[str]().union(
        *(b for s, b in zip(tree.body, bound, strict=True) if isinstance(s, IMPORTS))
    )
    return bound, used, [_changes(statement) - imported for statement in tree.body]


@lru_cache(maxsize=4)
def _read_registries(tree: ast.Module) -> tuple[list[set[str]], list[set[str]]]:
    """Return where each statement of a module enters itself as decorated, and where it looks up.

    ``@register("rms") class RMSNorm`` is entered in ``NORMS``, as ``register`` writes to it;
    ``@NORMS.register("rms")`` says so itself. Neither looks anything up there.
    """
    writes = {
        s.name: {_root_of(n) for n in walk(s) if _is_entry(n)}
        for s in tree.body
        if isinstance(s, ast.FunctionDef)
    }
    entered, looked_up = list[set[str]](), list[set[str]]()
    for statement in tree.body:
        decorators = getattr(statement, "decorator_list", [])
        roots = set(map(_root_of, decorators))
        entered.append(roots.union(*(writes.get(root, ()) for root in roots)))
        inside = [n for n in ast.iter_child_nodes(statement) if n not in decorators]
        used = {n.id for n in walk(*inside) if isinstance(n, ast.Name)}
        looked_up.append(used - writes.get(getattr(statement, "name", ""), set()))
    return entered, looked_up


def _is_entry(node: ast.AST) -> bool:
    """Say whether something is written into a container: ``NORMS[name] = cls``."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _root_of(node: ast.AST) -> str:
    """Return the name that ``NORMS.register("rms")`` begins with."""
    while not isinstance(node, ast.Name):
        inner = next((n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)), None)
        if inner is None:
            return ""
        node = inner
    return node.id


def _walk_scope(statement: ast.stmt, visit: Callable[[ast.AST], None]) -> None:
    visit(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.expr | ast.withitem):
            _walk_scope(child, visit)  # type: ignore[arg-type] # handlers and items too


def list_bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, IMPORTS):
            names.update((a.asname or a.name.partition(".")[0]) for a in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)

    _walk_scope(statement, visit)
    return names


def list_used_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads, wherever in it."""
    names = set[str]()
    for node in walk(statement):
        if isinstance(node, ast.Name):
            names.update([node.id] if isinstance(node.ctx, ast.Load) else [])
        elif isinstance(node, ast.Global):  # which the code may only ever write
            names.update(node.names)
        elif isinstance(node, ast.Constant):
            # Annotations in quotes name classes that a dataclass or a signature may look up.
            value = node.value
            if isinstance(value, str) and value.isidentifier():
                names.add(value)
    return names


def _changes(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        # ``train()`` at the end of a script uses the definition; ``Norm.update()`` changes it.
        targets = [*call.args, *([] if isinstance(call.func, ast.Name) else [call.func])]
    else:
        return set()
    return {
        node.id
        for target in targets
        if not isinstance(target, ast.Name) or isinstance(statement, ast.Expr)
        for node in walk(target)
        if isinstance(node, ast.Name)
    }


def find_names_beside(text: str, lines: Iterable[int]) -> set[str]:
    """Return the variables that functions read where they read what these lines of them have made.

    What ``counts.scatter_(1, ids, 1)`` does shows in ``logits - frequency * counts``, unless
    ``frequency`` is zero, as it is by default.
    """
    parts = _list_parts(text, lines)
    made = set[str]().union(*(stored for stored, _, on in parts if on))
    found, known = set[str](), -1
    while known < len(made) + len(found):
        known = len(made) + len(found)
        for stored, read, _ in parts:
            if read & made:
                found |= read
                made |= stored
    return found


def find_names_behind(text: str, lines: Iterable[int]) -> set[str]:
    """Return the variables of which functions make what these lines of them read.

    ``cs = clipped`` for ``cs = rhos.clamp(max=1.0)`` is the same as long as ``clip_rho`` is 1.0, of
    which ``clipped`` is made; ``blocks[: last + 1]`` is made of ``indices``, None by default, after
    ``last = most(indices)``.
    """
    parts = _list_parts(text, lines)
    found = set[str]().union(*(read for _, read, on in parts if on))
    known = -1
    while known < len(found):
        known = len(found)
        found = found.union(*(read for stored, read, _ in parts if stored & found))
    return found


def _list_parts(text: str, lines: Iterable[int]) -> list[tuple[set[str], set[str], bool]]:
    """Return what each statement of the functions around makes and reads, and if it is on a line.

    ``counts[rows] += 1`` and ``counts.add_(one)`` change what they hold.
    """
    try:
        tree, wanted = parse_once(text), set(lines)
    except (SyntaxError, ValueError):
        return []
    functions = (n for n in walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [n for n in functions if wanted & _span(n)]
    parts = [n for n in walk(*around) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
    return [
        (list_bound_names(p) | _changes(p), list_used_names(p), bool(wanted & _span(p)))
        for p in parts
    ]


def find_changed(pattern: re.Pattern[str], job: Job) -> list[list[str]]:
    """Return what a pattern finds on the changed lines, before and after."""
    sides = (job.original, job.lines_original), (job.patched, job.lines_patched)
    lines = [(text.splitlines(), numbers) for text, numbers in sides]
    return [
        [m for n in numbers if n <= len(held) for m in pattern.findall(held[n - 1])]
        for held, numbers in lines
    ]


def _span(statement: ast.stmt) -> set[int]:
    return {*range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)}


def list_operators(text: str, qualname: str) -> set[str]:
    """Return classes derived from ``torch.autograd.Function`` that a function needs, as code.

    Of such an operator, autograd checks nothing: with ``ctx.save_for_backward(x, x.sigmoid())`` the
    gradient may be right, and the gradient of the gradient wrong without a word. What else stands
    in its file has nothing to do with it. Of no syntax there are none.
    """
    try:
        tree = parse_once(text)
    except (SyntaxError, ValueError):
        return set()
    needed = slice_module(tree, qualname.partition(".")[0])
    classes = (n for part in needed for n in walk(part) if isinstance(n, ast.ClassDef))
    return {
        ast.unparse(node)
        for node in classes
        if any(_OWN_GRADIENT.search(ast.unparse(base)) for base in node.bases)
    }
