"""The attributes of ``self`` that methods read, and what each is, by what is done with it."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, parse_once, walk
from npufix.rewriters.verification.inputs.source.operands import find_keys
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READ_S = 5.0
_FEW = 16
"""Calls that are made before one in any case."""
_CHANGING = frozenset(
    [
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove"),
        *("clear", "update", "setdefault", "add", "discard", "put", "put_nowait"),
        "move_to_end",
    ]
)
"""What changes lists, dictionaries, sets and queues."""
_HANDS_OUT = frozenset(
    [
        *("parameters", "buffers", "modules", "children", "named_parameters", "named_buffers"),
        *("state_dict", "named_modules", "named_children", "items", "values", "get", "setdefault"),
        *(
            "view",
            "detach",
            "unbind",
            "chunk",
            "split",
            "narrow",
            "select",
            "transpose",
            "diagonal",
        ),
    ]
)
"""Methods whose result is a part of what they are called on, or shares its numbers."""
_PLAIN_BASE = re.compile(r"(^|\.)(Module|object|ABC)$")


def list_attributes_read(owner: type, method: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a method and what it calls of the class read, and what each is."""
    for tree in trees(owner, method):
        yield from classify_attributes(tree)


def list_attributes_written(owner: type, method: str) -> set[str]:
    """Return the attributes that a method, or what it calls of the class, sets or changes.

    ``self.n += 1``, ``self.rows[i] = row``, ``self.items.append(x)``, ``self.mean.lerp_(x, 0.1)``,
    also by another name: ``for p in self.slow.parameters(): p.mul_(0.9)``.
    """
    found: set[str] = set()
    for tree in trees(owner, method):
        parts_of = _name_parts(tree)
        for node in walk(tree):
            found |= {name for part in _list_changed(node) for name in _of_self(part, parts_of)}
    return found


def list_keys(owner: type, method: str) -> frozenset[str]:
    """Return the arguments of a method by which it looks up what its object holds."""
    tree = next(trees(owner, method), None)
    return frozenset() if tree is None else find_keys(tree)


def compares_counter(owner: type, method: str) -> bool:
    """Say whether a method, or what it calls of the class, compares what it counts up.

    ``self.n += 1`` beside ``min(self.decay, (1 + self.n) / (10 + self.n))``, also by a local name;
    that a counter is 0 or a few more says nothing of many calls.
    """
    for tree, counted in _list_counters(owner, method):
        for node in walk(tree):
            compared = False
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
                few = any(isinstance(p, ast.Constant) and _is_few(p.value) for p in parts)
                compared = not few and any(_mentions(part, counted) for part in parts)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"min", "max"}:
                compared = any(_mentions(part, counted) for part in node.args)
            if compared:
                return True
    return False


def list_counter_limits(owner: type, method: str, made: object = None) -> list[int]:
    """Return the numbers that code holds what it counts against: ``self.calls > 50``.

    ``self.calls % 50`` as well; small ones are come to in any case. ``made`` is an object of the
    class, which knows what ``self.every`` is where no caller says it, and ``EVERY`` of the module.
    """
    found = set[int]()
    kept = {n for tree in trees(owner, "__init__") for n, _ in list_kept(tree)}
    around = getattr(inspect.unwrap(getattr(owner, method)), "__globals__", {})
    for tree, counted in _list_counters(owner, method):
        for node in walk(tree):
            held = isinstance(node, ast.Compare | ast.BinOp) and _mentions(node, counted)
            if not held or (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod)):
                continue
            for one in walk(node):
                number: object = None
                if isinstance(one, ast.Constant):
                    number = one.value
                elif isinstance(one, ast.Name):
                    number = around.get(one.id)
                elif isinstance(one, ast.Attribute) and one.attr not in kept:
                    number = None if ast.unparse(one) in counted else getattr(made, one.attr, None)
                found.update([number] if type(number) is int and not _is_few(number) else [])
    return sorted(found)


def _list_counters(owner: type, method: str) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield what a method calls of the class, with what that counts up, if it does."""
    for tree in trees(owner, method):
        counted = {name for node in walk(tree) if (name := _find_counted(node))}
        for node in walk(tree):
            if isinstance(node, ast.Assign) and _mentions(node.value, counted):
                counted |= {ast.unparse(target) for target in node.targets}
        if counted:
            yield tree, counted


def list_bounding(owner: type, method: str) -> dict[str, str]:
    """Return the attributes that a method bounds sizes with, and the arguments they are.

    ``max_length`` for ``width = min(width, self.max_length)``, ``x[: self.max_length]`` and ``if
    len(x) > self.max_length``, where ``__init__`` keeps an argument as it is.
    """
    kept = dict(pair for tree in trees(owner, "__init__") for pair in list_kept(tree))
    bounds: list[ast.AST] = []
    for node in (n for tree in trees(owner, method) for n in walk(tree)):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            bounds += [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "min":
            bounds += node.args
        elif isinstance(node, ast.Slice):
            bounds += [n for n in (node.lower, node.upper) if n is not None]
    named = {ast.unparse(n) for n in walk(*bounds) if isinstance(n, ast.Attribute)}
    return {attribute: name for attribute, name in kept.items() if f"self.{attribute}" in named}


def _find_counted(node: ast.AST) -> str:
    """Return ``self.n`` for ``self.n += 1``, ``self.n = self.n + 1`` and ``self.n.add_(1)``."""
    of: ast.expr
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        of, by = node.target, node.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        of, by = node.targets[0], node.value.right
        if ast.unparse(of) != ast.unparse(node.value.left):
            return ""
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_" and node.args:
        of, by = node.func.value, node.args[0]  # type: ignore[attr-defined] # it has an attribute
    else:
        return ""
    whole = isinstance(by, ast.Constant) and type(by.value) is int
    text = ast.unparse(of)
    return text if whole and text.startswith("self.") else ""


def _is_few(value: object) -> bool:
    return type(value) is int and value <= _FEW


def _mentions(node: ast.AST, texts: set[str]) -> bool:
    return any(
        isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) in texts
        for one in walk(node)
    )


def list_kept(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the attributes of ``self`` that are set to plain names, and these, also in tuples."""
    yield from ((name, v.id) for name, v in list_set(function) if isinstance(v, ast.Name))


def list_set(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes of ``self`` that are set, and to what, also in tuples."""
    for node in walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(target.elts, node.value.elts, strict=False)]
        for one, value in pairs:
            if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self":
                yield one.attr, value


def _list_changed(node: ast.AST) -> list[ast.expr]:
    """Return what a node sets or changes in its place."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return [] if isinstance(node.ctx, ast.Load) else [node]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target]  # ``mine += theirs``, of tensors
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        in_place = name.endswith("_") and not name.startswith("_")
        if name.startswith("_foreach_") and in_place:  # ``torch._foreach_lerp_(slow, fast, 0.1)``
            return node.args[:1]
        return [node.func.value] if in_place or name in _CHANGING else []
    return []


def _name_parts(tree: ast.AST) -> dict[str, set[str]]:
    """Return the local names that are parts of attributes of ``self``, and of which.

    ``row`` of ``rows`` after ``row = self.rows[i]``, ``p`` of ``slow`` and ``q`` of ``fast`` in
    ``for p, q in zip(self.slow.parameters(), self.fast.parameters())``.
    """
    bound: list[tuple[ast.expr, ast.expr]] = []
    for node in walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            bound.append((node.target, node.iter))
        elif isinstance(node, ast.Assign):
            bound += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            bound.append((node.target, node.value))
    found: dict[str, set[str]] = {}
    for target, value in bound:
        for name, source in _pair(target, value):
            found.setdefault(name, set()).update(_of_self(source, found))
    return found


def _pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that is bound, and what it is a part of."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        several = [value] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List):
            several = value.elts
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "zip":
                several = value.args
            elif value.func.id == "enumerate" and value.args:
                several = [ast.Constant(0), value.args[0]]
        for one, part in zip(target.elts, several, strict=False):
            yield from _pair(one, part)


def _of_self(node: ast.expr, parts_of: Mapping[str, set[str]]) -> set[str]:
    """Return ``rows`` for ``self.rows[i].data``; nothing for what is of no ``self``."""
    while True:
        if isinstance(node, ast.Call):  # ``self.model.parameters()``, ``self.groups.items()``
            if not (isinstance(node.func, ast.Attribute) and node.func.attr in _HANDS_OUT):
                return set()
            node = node.func.value
        elif isinstance(node, ast.Attribute | ast.Subscript):
            inner = node.value
            own = isinstance(inner, ast.Name) and inner.id == "self"
            if own and isinstance(node, ast.Attribute):
                return {node.attr}
            node = inner
        else:
            return parts_of.get(node.id, set()) if isinstance(node, ast.Name) else set()


def trees(owner: type, method: str) -> Iterator[ast.AST]:
    """Yield the syntax of a method or property, and of those that it reads of the class."""
    queue, seen = [method], set[str]()
    while queue:
        name = queue.pop()
        function = inspect.getattr_static(owner, name, None)
        function = function.fget if isinstance(function, property) else function
        if name in seen or not inspect.isfunction(function):
            continue
        seen.add(name)
        source = try_call(lambda f=function: inspect.getsource(f), _READ_S).value  # type: ignore[misc] # a default binds it
        if not isinstance(source, str):
            continue
        # not ``dedent``, which a comment or a docstring at the first column stops
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
        queue += [name for name, _ in classify_attributes(tree)]
        yield tree


def classify_attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the attributes of ``self`` that code reads, and what each is.

    ``self.n += 1`` reads it, too.
    """
    called = {id(node.func) for node in walk(tree) if isinstance(node, ast.Call)}
    added_to = {id(node.target) for node in walk(tree) if isinstance(node, ast.AugAssign)}
    for node in walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        if node.value.id != "self" or not (isinstance(node.ctx, ast.Load) or id(node) in added_to):
            continue
        is_tensor = re.search(r"weight|gamma|scale$|^g$|beta$|bias$", node.attr)
        yield node.attr, "call" if id(node) in called else "tensor" if is_tensor else "number"


def read_attributes(owner: type, method: str) -> dict[str, str]:
    """Return what ``method`` reads from ``self``: as a tensor, a callable or a number."""
    found: dict[str, str] = {}
    for name, what in list_attributes_read(owner, method):
        if hasattr(owner, name):
            continue
        if what == "number":
            found.setdefault(name, what)
        else:
            found[name] = what
    return found


def list_classes(text: str) -> list[ast.ClassDef]:
    """Return the classes that a text defines; none if it is no Python."""
    try:
        return [n for n in ast.walk(parse_once(text)) if isinstance(n, ast.ClassDef)]
    except (SyntaxError, ValueError):
        return []


def read_by_other(text: str, owner: type, method: str) -> dict[str, str]:
    """Return what the other version reads from ``self``, as far as something may have set it."""
    cls = next((c for c in list_classes(text) if c.name == owner.__name__), None)
    functions = [n for n in (cls.body if cls else ()) if getattr(n, "name", "") == method]
    if cls is None:
        return {}
    own = {
        n.attr for n in ast.walk(cls) if isinstance(n, ast.Attribute) and type(n.ctx) is ast.Store
    }
    inherits = any(not _PLAIN_BASE.search(ast.unparse(base)) for base in cls.bases)
    pairs = (pair for function in functions for pair in classify_attributes(function))
    return {n: w for n, w in pairs if (inherits or n in own) and not hasattr(owner, n)}


def sees_order(text: str, qualname: str, what: str, said: str) -> bool:
    """Say whether anybody sees in which order a dictionary was filled, if that is ``what`` differs.

    Not of ``{"loss": loss, "accuracy": accuracy}``, read by names that the code writes itself; nor
    of one that a class keeps, ``order of self.seen``, and never goes through. What is filled by the
    keys of a call comes in their order, and a cache drops the first. ``said``: how they differ.
    """
    order = re.match(r"order of (?:self\.(\w+))?", what)
    if order is None or "OrderedDict" in text:
        return True
    tree = parse_once(text)
    if order[1] is not None:
        classes = [n for n in walk(tree) if getattr(n, "name", "") == qualname.partition(".")[0]]
        return any(order[1] in _list_gone_through(one) for one in classes)
    names = set(re.findall(r"'([^']*)'", said.partition(" in the original")[0]))
    written = {n.value for n in walk(tree) if isinstance(n, ast.Constant)}
    written |= {n.arg for n in walk(tree) if isinstance(n, ast.keyword)}
    return not names or not written.issuperset(names)


_SEES_NO_ORDER = frozenset({"bool", "isinstance", "len", "set", "sorted", "sum", "any", "all"})


def _list_gone_through(owner: ast.AST) -> Iterator[str]:
    """Yield the attributes that a class goes through, or hands to somebody who may."""
    for node in walk(owner):
        held: list[ast.expr | None] = []
        match node:
            case ast.For(iter=over) | ast.comprehension(iter=over):
                held = [over]
            case ast.Call(func=ast.Attribute(value, "popitem" | "items" | "keys" | "values")):
                held = [value]
            case ast.Call(func=called, args=args) if last_name(called) not in _SEES_NO_ORDER:
                held = [*args, *(word.value for word in node.keywords)]
            case ast.Starred(value) | ast.Return(value) | ast.Yield(value) | ast.YieldFrom(value):
                held = [value]
            case ast.Assign([ast.Name()], value):
                held = [value]
            case ast.Dict(keys, values):
                held = [v for k, v in zip(keys, values, strict=True) if k is None]
        # of ``self.a.b`` what the name begins with
        parts = (re.match(r"self\.(\w+)", ast.unparse(n)) for n in held if n is not None)
        yield from (part[1] for part in parts if part)


def find_init(tree: ast.Module, qualname: str) -> ast.stmt | None:
    """Return what makes the objects of a method's class; None for a function."""
    cls = find_class(tree, qualname)
    body = cls.body if cls is not None else []
    return next((n for n in body if getattr(n, "name", "") == "__init__"), None)


def find_class(tree: ast.Module, qualname: str) -> ast.ClassDef | None:
    """Return the class that a method, ``"Norm.forward"``, is written in."""
    owner = qualname.rpartition(".")[0]
    return next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner), None)
