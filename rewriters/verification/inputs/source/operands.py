"""Arguments by what they stand beside: scores that they are added to, counters of loops.

``scores + attention_mask`` takes flags as well, 1 for True, yet no caller means that; what fused
attention does with flags is something else, and no counterexample. ``chosen == expert`` in a loop
over experts says that it holds their numbers.
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_defaults,
    list_stored_names,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_PLACES = frozenset(
    ["unsqueeze", "squeeze", "expand", "expand_as", "contiguous", "view", "reshape"]
)
"""Methods that keep every number."""
_UNDER_MASKS = frozenset(
    ["masked_fill", "masked_fill_", "masked_select", "masked_scatter", "where"]
)
"""Whose mask is bool."""
_AT_PLACES = re.compile(r"^(index_(add|copy|fill|reduce|select)|gather|scatter(_add|_reduce)?)_?$")
"""What takes an axis and then whole numbers, which say where."""
_LOOKS_UP = frozenset(["get", "pop", "setdefault", "move_to_end"])
"""Methods of dictionaries that take a key first."""
_OF_BOXES = re.compile(r"(^|_)(iou|nms)(_|$)|box_area|overlaps")
"""Functions whose arguments are boxes."""
_APART = frozenset(["unbind", "chunk", "split", "T", "t"])
"""What has a part for each column."""
_EXTENTS = frozenset([("2", "0"), ("3", "1"), ("2:", ":2"), ("2:4", ":2")])
"""Columns whose difference is a width or a height."""
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def list_keys_by_default(
    function: ast.FunctionDef | ast.AsyncFunctionDef, init: ast.AST | None = None
) -> dict[str, list[str]]:
    """Return what holds something under a text that an argument is by default, with the text.

    ``batch`` of ``def pick(batch, key="input_ids"): return batch[key]``, and of ``batch[self.key]``
    where ``init`` keeps such an argument, or a text.
    """
    texts = _list_texts(function) | _list_kept_texts(init)
    found: dict[str, list[str]] = {}
    for node in walk(function) if texts else ():
        place, held = getattr(node, "slice", None), getattr(node, "value", None)
        if isinstance(node, ast.Call) and last_name(node.func) in _LOOKS_UP and node.args:
            place, held = node.args[0], getattr(node.func, "value", None)
        name, key = getattr(held, "id", ""), ast.unparse(place) if place is not None else ""
        if name and key in texts:
            found.setdefault(name, []).append(texts[key])
    return found


def _list_texts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    return {
        name: default.value
        for name, default in list_defaults(function.args).items()
        if isinstance(default, ast.Constant) and isinstance(default.value, str)
    }


def _list_kept_texts(init: ast.AST | None) -> dict[str, str]:
    """Return the texts that an object is made with by default, by what it calls them itself."""
    if not isinstance(init, ast.FunctionDef):
        return {}
    given, kept = _list_texts(init), dict[str, str]()
    for node in walk(init):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        pairs = [(node.targets[0], node.value)]
        if all(isinstance(side, ast.Tuple) for side in pairs[0]):
            pairs = [*zip(*(getattr(side, "elts", ()) for side in pairs[0]), strict=False)]
        for target, value in pairs:
            text = value.value if isinstance(value, ast.Constant) else ""
            text = given.get(value.id, "") if isinstance(value, ast.Name) else text
            if text and isinstance(text, str):
                kept[ast.unparse(target)] = text
    return kept


def find_summed(function: ast.AST, names: Collection[str]) -> frozenset[str]:
    """Return those that only stand in sums, cut or placed before: ``scores + mask[:, None, :t]``.

    Asking whether there is one, and what shape it has, is no other use.
    """
    nodes = list(walk(function))
    owners = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    summed: set[str] = set()
    other: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            if _is_summed(node, owners):
                summed.add(node.id)
            elif _says(node, owners):
                other.add(node.id)
    return frozenset(summed - other)


def _is_summed(name: ast.Name, owners: dict[ast.AST, ast.AST]) -> bool:
    node: ast.AST = name
    owner = owners.get(node)
    while owner is not None and _keeps(owner, node):
        node, owner = owner, owners.get(owner)
    if isinstance(owner, ast.BinOp | ast.AugAssign):
        return isinstance(owner.op, ast.Add)
    if isinstance(owner, ast.Call) and node in owner.args:
        called = owner.func.attr if isinstance(owner.func, ast.Attribute) else ""
        return called in {"add", "add_"}
    return False


def _keeps(owner: ast.AST, node: ast.AST) -> bool:
    """Say whether this is a part of ``node``, or the same numbers in another shape."""
    if isinstance(owner, ast.Subscript | ast.Attribute):
        return owner.value is node and (isinstance(owner, ast.Subscript) or owner.attr in _PLACES)
    return isinstance(owner, ast.Call) and owner.func is node


def _says(name: ast.Name, owners: dict[ast.AST, ast.AST]) -> bool:
    """Say whether a use says more than that there is one: not for ``mask is not None``."""
    owner = owners.get(name)
    if isinstance(owner, ast.Compare):
        return not all(isinstance(op, ast.Is | ast.IsNot) for op in owner.ops)
    return not (isinstance(owner, ast.Attribute) and owner.attr in {"shape", "size", "dim", "ndim"})


def list_lettered(
    function: ast.AST, names: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sizes by which ``einsum("nbh,bh->n", keys, query)`` calls those of arguments.

    Of one that multiplies arguments alone, which are no others before, each for the first time.
    """
    for own, letters, _ in _list_einsums(function, names):
        yield from ((name, tuple(each)) for name, each in zip(own, letters, strict=True))


def list_spread(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield ``b`` of ``einsum("nbh,bh->nb", keys, query)``: one query goes with all rows of keys.

    So torch spreads whatever several operands and the result have.
    """
    for _, letters, result in _list_einsums(function, names):
        every = "".join(letters)
        yield from (one for one in dict.fromkeys(result) if every.count(one) > 1)


def _list_einsums(
    function: ast.AST, names: Collection[str]
) -> Iterator[tuple[list[str], list[str], str]]:
    seen: set[str] = set()
    free = {*names} - list_stored_names(function)
    for call in walk(function):
        match call:
            case ast.Call(func, [ast.Constant(str(pattern)), *given]) if (
                last_name(func) == "einsum"
            ):
                operands, _, result = pattern.replace(" ", "").partition("->")
                letters = operands.split(",")
                own = [getattr(one, "id", "") for one in given]
                plain = len(own) == len(letters) and all(map(str.isalpha, letters))
                if plain and set(own) <= free - seen and len({*own}) == len(own):
                    seen |= {*own}
                    yield own, letters, result


def find_flags(call: ast.Call) -> str:
    """Return the name, cut or placed, that a call takes where torch takes nothing but bools."""
    called, given = last_name(call.func), call.args
    if called not in _UNDER_MASKS:
        return ""
    of_torch = getattr(getattr(call.func, "value", None), "id", "") == "torch"
    if called == "where":  # the condition, and two to choose from
        return _placed(given[0]) if of_torch and len(given) == 3 else ""  # noqa: PLR2004
    return _placed(given[of_torch]) if len(given) > of_torch else ""


def list_places(function: ast.AST) -> Iterator[tuple[str, set[int]]]:
    """Yield the names that say where, of ``out.index_add_(0, batch, x)``: whole numbers.

    And how many dimensions they have, if not as many as what they pick from.
    """
    for call in walk(function):
        if isinstance(call, ast.Call) and _AT_PLACES.match(called := last_name(call.func)):
            of_torch = getattr(getattr(call.func, "value", None), "id", "") == "torch"
            given = call.args[1 + of_torch : 2 + of_torch]
            given += [k.value for k in call.keywords if k.arg == "index"]
            dims = {1} if called.startswith("index") else set[int]()
            yield from ((n.id, dims) for n in given if isinstance(n, ast.Name))


def list_ranks(function: ast.AST, names: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield the arguments whose last axis an index writes out, with the number of axes.

    3 for ``x[:, -1:, :]``, which nobody writes where there are four. Below
    ``x = residual + self.attention(x)``, which has as many, too.
    """
    known = {name: name for name in names}
    marks = [n for n in walk(function) if isinstance(n, ast.Subscript | ast.Assign)]
    for node in sorted(marks, key=lambda n: (n.lineno, isinstance(n, ast.Assign))):
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            axes = [p for p in parts if ast.unparse(p) != "None"]
            of = known.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if (
                of
                and len(axes) > 1
                and ast.unparse(axes[-1]) == ":"
                and all(map(_is_one_axis, axes))
            ):
                yield of, len(axes)
            continue
        value = node.value
        sides = [value.left, value.right] if isinstance(value, ast.BinOp) else [value]
        if isinstance(value, ast.Call) and re.search("norm|drop", last_name(value.func)):
            sides = value.args[:1]
        of = next((known[s.id] for s in sides if isinstance(s, ast.Name) and s.id in known), None)
        sums = not isinstance(value, ast.BinOp) or isinstance(value.op, ast.Add | ast.Sub)
        for target in (n for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)):
            if isinstance(target.ctx, ast.Store):
                known.pop(target.id, None)
                known |= {target.id: of} if of and sums and target in node.targets else {}


def _is_one_axis(part: ast.expr) -> bool:
    return isinstance(part, ast.Slice | ast.Constant | ast.UnaryOp) and ast.unparse(part) != "..."


def _placed(node: ast.AST) -> str:
    """Return the name in ``~pad[:, None, :]`` or ``rearrange(pad, "b j -> b 1 1 j")``, or ""."""
    match node:
        case ast.Name(name):
            return name
        case ast.UnaryOp(ast.Invert(), inner):
            return _placed(inner)
        case ast.Subscript(inner, ast.Tuple() | ast.Slice()):  # of a list this could be one of it
            return _placed(inner)
        case ast.Call(ast.Attribute(inner, method)) if method in _PLACES | {"logical_not"}:
            return _placed(inner)
        case ast.Call(function, [inner, *_]) if last_name(function) in {"rearrange", "logical_not"}:
            return _placed(inner)
    return ""


def list_compared_with_counters(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield ``chosen`` for ``torch.where(chosen == e)`` in a loop of e over a range.

    With what its numbers are less than, for ``range(n)``: what is more belongs nowhere. Not for
    ``if layer == i:``, which asks for a number.
    """
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.comprehension)]
    counted = {"range": lambda t: t, "enumerate": lambda t: getattr(t, "elts", [t])[0]}
    counters: dict[str, str] = {}
    for loop in loops:
        made = loop.iter
        if not isinstance(made, ast.Call) or getattr(made.func, "id", "") not in counted:
            continue
        kind = getattr(made.func, "id", "")
        name = getattr(counted[kind](loop.target), "id", "")
        whole = kind == "range" and len(made.args) == 1
        bound = ast.unparse(made.args[0]).removeprefix("self.") if whole else ""
        counters[name] = bound if re.fullmatch(r"\w+", bound) else ""
    for node in walk(function):
        held = node.args if isinstance(node, ast.Call) else [getattr(node, "value", None)]
        held = [node.slice] if isinstance(node, ast.Subscript) else held
        for one in held:
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq):
                sides = [n.id for n in (one.left, one.comparators[0]) if isinstance(n, ast.Name)]
                known = next((counters[n] for n in sides if n in counters), None)
                yield from ((n, known) for n in sides if n not in counters and known is not None)


def list_deciding(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield those whose size decides alone: ``if score < self.best`` after ``score = -loss``.

    They are numbers: a tensor of several says neither yes nor no.
    """
    same = {name: name for name in names}
    for node in walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value.operand if isinstance(node.value, ast.UnaryOp) else node.value
            if isinstance(value, ast.Name) and value.id in same:
                same[node.targets[0].id] = same[value.id]
    for node in walk(function):
        if not isinstance(node, ast.If | ast.IfExp | ast.While):
            continue
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        for part in parts:
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], _ORDERS):
                sides = (part.left, *part.comparators)
                yield from (same[s.id] for s in sides if isinstance(s, ast.Name) and s.id in same)


def list_looped_twice(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield those that hold what is gone through: ``layer`` of ``for layer in past``."""
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.comprehension)]
    within = {getattr(loop.iter, "id", "") for loop in loops}
    for loop in loops:
        if getattr(loop.target, "id", "") in within and getattr(loop.iter, "id", "") in names:
            yield ast.unparse(loop.iter)


def find_keys(function: ast.AST) -> frozenset[str]:
    """Return the names by which a method looks up what its object holds in a dictionary.

    ``length`` of ``self.tables.get(length)``, of ``(length, dtype) in self.tables``, and of both
    with ``key = (length, dtype)``.
    """
    asked: list[ast.expr] = []
    assigned = [node for node in walk(function) if isinstance(node, ast.Assign)]
    for node in walk(function):
        match node:
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[held]):
                asked += [key] if _is_own(held) else []
            case ast.Call(func=ast.Attribute(value=held, attr=name), args=[key, *_]):
                asked += [key] if name in _LOOKS_UP and _is_own(held) else []
    found = _list_parts(asked)
    for one in assigned:
        found |= _list_parts([one.value]) if found & _list_parts(one.targets) else set()
    return frozenset(found)


def list_plain_keys(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield those that are looked up and asked for nothing that a tensor has: numbers do."""
    asked = (n for n in walk(function) if isinstance(n, ast.Attribute | ast.Subscript))
    yield from find_keys(function).intersection(names) - {getattr(n.value, "id", "") for n in asked}


def _is_own(node: ast.expr) -> bool:
    """Say whether this is ``self.tables``."""
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"


def _list_parts(nodes: Iterable[ast.expr]) -> set[str]:
    """Return the names that are these, or items of them: of a tuple that is a key."""
    every = (item for n in nodes for item in (n.elts if isinstance(n, ast.Tuple) else [n]))
    return {item.id for item in every if isinstance(item, ast.Name)}


def find_corners(function: ast.AST, names: Collection[str]) -> frozenset[str]:
    """Return those that hold the corners of boxes, by what is computed of them.

    ``b[:, 2] - b[:, 0]``, ``b[..., 2:] - b[..., :2]``, ``x2 - x1`` after ``x1 = b[:, 0]`` and so
    on, ``x1, y1, x2, y2 = b.unbind(-1)`` and ``box_iou(b, c)``.
    """
    found: set[str] = set()
    columns: dict[str, tuple[str, str]] = {}
    for node in walk(function):
        if isinstance(node, ast.Assign):
            columns |= _name_columns(node.targets[0], node.value)
        elif isinstance(node, ast.Call) and _OF_BOXES.search(last_name(node.func).lower()):
            found |= {one.id for one in node.args if isinstance(one, ast.Name)}
    for node in walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            (high, last), (low, first) = _column(node.left, columns), _column(node.right, columns)
            found |= {high} if high == low and (last, first) in _EXTENTS else set()
    return frozenset(found.intersection(names))


def _name_columns(target: ast.expr, value: ast.expr) -> dict[str, tuple[str, str]]:
    """Return what each name is a column of, and which."""
    if not isinstance(target, ast.Tuple):
        of, at = _column(value, {})
        return {target.id: (of, at)} if of and isinstance(target, ast.Name) else {}
    made = value.func if isinstance(value, ast.Call) else value
    if isinstance(value, ast.Tuple):
        parts = [_column(one, {}) for one in value.elts]
    elif isinstance(made, ast.Attribute) and made.attr in _APART:
        parts = [(getattr(made.value, "id", ""), str(at)) for at in range(len(target.elts))]
    else:
        return {}
    return {getattr(n, "id", ""): p for n, p in zip(target.elts, parts, strict=False) if p[0]}


def _column(node: ast.expr, columns: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Return ``("b", "2")`` for ``b[:, 2]``, and for a name of it."""
    if isinstance(node, ast.Name):
        return columns.get(node.id, ("", ""))
    if not isinstance(node, ast.Subscript):
        return "", ""
    at = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    return getattr(node.value, "id", ""), ast.unparse(at)


def is_element(node: ast.AST | None, name: str) -> bool:
    """Say whether this is ``x[i]``, for what has this name."""
    plain = isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Tuple)
    return plain and getattr(getattr(node, "value", None), "id", "") == name


def find_derived(function: ast.AST, names: Collection[str]) -> frozenset[str]:
    """Return those that gradients are computed of: ``(loss / n).backward()``, ``scale(loss)``."""
    found: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = [node.func.value] if node.func.attr == "backward" else []
            of += node.args[:1] if node.func.attr in {"backward", "scale"} else []
            found |= {_name_first(one) for one in of}
    return frozenset(found.intersection(names))


def list_differentiated(function: ast.AST, names: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return which arguments must be computed from which: of ``grad(u.sum(), x)``, u from x.

    As long as both are what was given, and the function does not want x to have a gradient itself.
    """
    free, found = {*names} - list_stored_names(function), dict[tuple[str, str], None]()
    for node in walk(function):
        if not isinstance(node, ast.Call):
            continue
        if last_name(node.func) == "requires_grad_" and isinstance(node.func, ast.Attribute):
            free.discard(_name_first(node.func.value))
        named = {k.arg: k.value for k in node.keywords}
        ends = [*node.args[:2], *(named[n] for n in ("outputs", "inputs") if n in named)]
        if last_name(node.func) == "grad" and len(ends) == 2:  # noqa: PLR2004 - of what, and by what
            results, bases = (
                [*one.elts] if isinstance(one, ast.List | ast.Tuple) else [one] for one in ends
            )
            pairs = itertools.product((_name_first(r, cut=True) for r in results), bases)
            found |= {(u, x.id): None for u, x in pairs if isinstance(x, ast.Name)}
    return tuple((u, x) for u, x in found if u != x and {u, x} <= free)


def list_options(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what is read of ``**kwargs`` by name, with its default; None where it must be there.

    ``kwargs.get("scale", 1.0)``, ``kwargs["scale"]`` and, as it may be left out, with ``"scale" in
    kwargs``.
    """
    of = function.args.kwarg.arg if function.args.kwarg is not None else ""
    found: dict[str, ast.expr | None] = {}
    for node in walk(function) if of else ():
        match node:
            case ast.Call(
                func=ast.Attribute(ast.Name(id=name), "get" | "pop" as how),
                args=[ast.Constant(str(key)), *default],
            ) if name == of:
                if default or how == "get":
                    found[key] = default[0] if default else ast.Constant(None)
                else:
                    found.setdefault(key, None)
            case ast.Subscript(ast.Name(id=name), ast.Constant(str(key)), ast.Load()) if name == of:
                found.setdefault(key, None)
            case ast.Compare(ast.Constant(str(key)), _, [ast.Name(id=name)]) if name == of:
                found[key] = found.get(key) or ast.Constant(None)
    yield from ((key, default) for key, default in found.items() if key.isidentifier())


def _name_first(node: ast.expr, *, cut: bool = False) -> str:
    """Return ``loss`` for ``(loss / n).mean()``; with ``cut``, for ``loss[:, 0].mean()`` too."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Subscript(value=inner) if cut:
                node = inner
            case ast.BinOp(left=inner) | ast.Attribute(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return ""
    return node.id


def list_added_up(function: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Yield the lists of numbers of which Python adds up one: ``torch.tensor(sum(counts))``."""
    for node in walk(function):
        match node:
            case ast.Call(
                ast.Attribute(_, "as_tensor" | "new_tensor" | "tensor"),
                [ast.Call(ast.Name("sum"), [ast.Name(name)], []), *_],
            ) if name in names:
                yield name
