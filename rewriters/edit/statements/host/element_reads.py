"""Elements of a tensor that a loop reads on the host one by one, which one read can bring."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.edit.statements.host.of_host import is_list, is_tensor_elsewhere
from npufix.rewriters.edit.statements.host.seldom import is_rare, is_seldom
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.rounds.written import is_left_alone
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.facts.host_tensors import is_bound_on_host
from npufix.rewriters.facts.index_facts import are_found_positions
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    last_name,
    list_indexes,
    list_names,
    list_stored_names,
    names_bound_in,
    nodes_of,
    root_name,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


IN_LOOP = (
    "the host waits in every round: read all values once before the loop (n = x.tolist()), or "
    "compute what follows on the device"
)
_FOR_EACH = (
    "each function that is handed this reads it back, and the host waits each time: read it once "
    "where they are called (values = x.tolist()), and hand the list in"
)


class Element(NamedTuple):
    """``x[i].item()``, ``int(x[i])``, ``x[i]`` of ``y[: x[i]]``: ``code`` becomes ``values[i]``."""

    code: ast.expr
    base: ast.expr
    place: ast.expr


def is_made_in(loop: ast.AST, code: ast.expr) -> bool:
    """Tell whether a loop computes what is read: not so of elements that it goes through.

    What an operator in place returns is made where it stands: ``clip_grad_norm_(weights, 1.0)``.
    """
    assigned = {
        n.id
        for s in ast.walk(loop)
        if isinstance(s, ast.Assign)
        for t in s.targets
        for n in ast.walk(t)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return any(
        (isinstance(n, ast.Name) and n.id in assigned)
        or (isinstance(n, ast.Call) and re.search(r"[^_]_$", last_name(n.func)))
        for n in ast.walk(code)
    )


def read_by_others(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return what to do where other functions are handed a value too, and read all of it as well.

    ``grid_thws.tolist()`` in the position embedding, in the rotary one and in the patch merger.
    """
    tree = here.flow.names.tree
    match code:
        case ast.Call(ast.Attribute(ast.Name(name) as given, "tolist")) if tree is not None:
            value = here.value(given)
            if is_bound_on_host(here.flow, name):
                return None
            readers = sum(_reads_all(part, name) for part in nodes_of(tree))
            is_given = value is not None and value.op == Op.PARAM
            return Proposal(code, _FOR_EACH) if is_given and readers > 1 else None
    return None


def _reads_all(code: ast.AST, name: str) -> bool:
    if not isinstance(code, ast.FunctionDef):
        return False
    given = {arg.arg for arg in (*code.args.args, *code.args.kwonlyargs)}
    return name in given and any(
        isinstance(n, ast.Attribute) and n.attr == "tolist" and ast.unparse(n.value) == name
        for n in walk(code)
    )


def is_implied(here: Surroundings, code: ast.Subscript) -> bool:
    """Tell whether Python makes a number of an element: ``if x[i] > 0:``, ``y[: n[i]]``.

    The index counts. What is read by name, ``int(x[i])``, is implied as well.
    """
    inner = code.value
    while isinstance(inner, ast.Subscript):  # ``x[i][j]``
        inner = inner.value
    parts = list_indexes(code.slice)
    return (
        all(isinstance(part, (ast.BinOp, ast.Name)) for part in parts)
        and has_root(inner)
        and here.loop_of(code) is not None
        and all(is_plain(here, part) for part in parts)
        and is_number_there(here, code)
        and _seems_tensor(here, inner)
    )


def _seems_tensor(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is a tensor, or the function does with it what nobody does with lists."""
    known, value = here.is_tensor(code), here.value(code)
    if known is not None or value is None:
        return known is True
    if value.op in operators.TO_DEVICE or is_tensor_elsewhere(here, code):
        return True
    return any(
        e.node.args[0] is value
        or (e.node.args[0].op == Op.GETITEM and value in e.node.args[0].args)
        for op in (*operators.OF_TENSORS_ONLY, "item", "tolist", "unsqueeze")
        for e in here.flow.by_operation.get(op, ())
        if e.node.args
    )


def read_before(here: Surroundings, code: ast.expr) -> Proposal | None:
    """Return the read of all elements before the loop, for the first of those in it.

    ::

        for i in range(n):              values = starts.tolist()
            k = starts[i].item()        for i in range(n):
                                            k = values[i]
    """
    first = _element(here, code)
    at = None if first is None else place_before(here, code, first)
    if first is None or at is None or waits_anyhow(here, at) or is_list(here, first.base):
        return None
    base = here.text(first.base)
    every = [
        e for n in walk(at) if (e := _element(here, n)) is not None and here.text(e.base) == base
    ]
    if not all(is_plain(here, part) for e in every for part in list_indexes(e.place)):
        return None
    depths = {len(list_indexes(e.place)) for e in every}
    if len(depths) > 1:
        return None  # a row here, and a number there
    name = _new_name(here, first.base)
    line = (at.lineno, 0, at.lineno, 0)
    once = {id(e.code): e for e in every}.values()  # both ``int(x[i].item())`` and what is in it
    changes = [
        Change(here.span(e.code), f"{name}[{']['.join(map(here.text, list_indexes(e.place)))}]")
        for e in once
    ]
    value = here.value(first.base)
    is_flat = isinstance(code, ast.Subscript) and depths == {1}
    if is_flat and value is not None:  # Python asks for one number: each row holds no more
        is_flat = here.facts(here.evaluations[id(first.base)], x=value).ndim("x") != 1
    head = f"{name} = {base}{'.flatten()' if is_flat else ''}.tolist()"
    found = propose_read(
        here, code, first.base, at, (Change(line, f"{here.indent(at)}{head}\n"), *changes), head
    )
    if depths != {1}:
        return replace(found, form="parts_of_rows", proven=found.proven - {"vector"})
    return replace(found, proven=found.proven | {"vector"}) if is_flat else found


def waits_anyhow(here: Surroundings, loop: ast.AST) -> bool:
    """Tell whether each round brings to the host what it has computed: one wait more is cheap.

    ``path = align(probs[i, : lengths[i]].log().cpu())``
    """
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in {"cpu", "tolist"}
        and here.is_tensor(n.func.value) is not False
        and is_made_in(loop, n.func.value)
        and not (is_seldom(here, n) or is_rare(here, n))
        for n in walk(loop)
    )


def is_covered(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an element before this one brings all of them: it is said there."""
    own = _element(here, code)
    at = None if own is None else place_before(here, code, own)
    if own is None or at is None:
        return False
    same = [
        n
        for n in walk(at)
        if (e := _element(here, n)) is not None and ast.dump(e.base) == ast.dump(own.base)
    ]
    first = min(same, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
    return (
        first is not code and isinstance(first, ast.expr) and read_before(here, first) is not None
    )


_TAKES_NUMBERS = frozenset(
    {
        "arange", "empty", "expand", "float", "full", "int", "linspace", "new_empty", "new_full",
        "new_ones", "new_zeros", "ones", "range", "repeat", "reshape", "unflatten", "view", "zeros",
    }
)  # fmt: skip
"""What makes a number of a tensor, for which the host waits each time."""
_WORDS = frozenset({"k", "length", "max", "min", "repeats", "shifts", "size", "start"})
_TAKE_BEHIND = frozenset({"topk", "narrow"})
"""What makes a number of a tensor that is not its first argument: ``torch.topk(x, k=n[i])``."""
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_BESIDE_TENSORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_FLAT = frozenset({"flatten", "reshape", "squeeze", "view"})
"""What leaves numbers of the positions in a vector, each of which is a row first."""
_IN_OR_IS = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
_EXACT = 256
"""What eight bits hold, as many as the numbers of bfloat16 have."""


def is_number_there(  # noqa: C901, PLR0911, PLR0912 - one case a use
    here: Surroundings, code: ast.expr, known: frozenset[str] = frozenset()
) -> bool:
    """Tell whether a tensor without dimensions is made a number of: ``x[:n]``, ``view(h * w)``.

    So it is as well where it gets a name first, ``rows = h // 2``, or is asked for: ``if t > 1:``.
    """
    inner: ast.AST = code
    for outer in here.around(code):
        match outer:
            case ast.BinOp(op=operator) if isinstance(operator, _ARITHMETIC):
                pass
            case ast.BoolOp() | ast.UnaryOp(ast.Not() | ast.USub()):
                pass
            case ast.Slice() | ast.Tuple():
                if isinstance(outer, ast.Slice):
                    return True
            case ast.Subscript(owner, index):
                # of a list; in ``x[row]`` of a tensor it may be a row of indexes, or a mask
                return index is inner and here.is_tensor(owner) is False
            case ast.Compare(left, [operator], [right]) if not isinstance(operator, _IN_OR_IS):
                if not all(part is inner or _is_exact(here, part) for part in (left, right)):
                    return False
            case ast.If(test) | ast.IfExp(test) | ast.While(test):
                return test is inner
            case ast.comprehension(ifs=tests):
                return inner in tests
            case ast.keyword(arg=word) if word in _WORDS:
                pass
            case ast.Call(function, arguments):
                called = last_name(function)
                if called in {"clamp", "clamp_"}:
                    return isinstance(inner, ast.keyword)
                if called in _TAKE_BEHIND:
                    return inner not in arguments[:1]
                taken = inner in arguments and called in _TAKES_NUMBERS
                return taken and not _is_cut(here, code, inner, called)
            case ast.Assign([target], value) | ast.AugAssign(target, value=value):
                return not isinstance(inner, (ast.BoolOp, ast.Compare)) and all(
                    own in known or _are_numbers(here, own, known | {own})
                    for own in _given_names(target, value, code)
                )
            case _:
                return False
        inner = outer
    return False


def _is_cut(here: Surroundings, code: ast.expr, whole: ast.AST, how: str) -> bool:
    """Tell whether a product of single precision is cut, of which Python computes another one.

    ``int(0.7 * 10)`` is 7, and 6 of what float32 holds in place of 0.7; not so of integers.
    """
    if how != "int" or not (isinstance(whole, ast.BinOp) and isinstance(whole.op, ast.Mult)):
        return False
    node, at = here.value(code), here.evaluations.get(id(code))
    facts = None if node is None or at is None else here.facts(at, x=node)
    return facts is None or not (facts.dtype("x") in {"int32", "int64"} or facts.is_int("x"))


def _is_exact(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a number is the same in each dtype: 0.1 of single precision is above 0.1."""
    match code:
        case ast.UnaryOp(ast.USub(), inner):
            return _is_exact(here, inner)
        case ast.Constant(int() | float() as number):
            return (math.frexp(number)[0] * _EXACT).is_integer()
        case ast.Subscript(base, index) if has_root(base) and is_plain(here, index):
            if _seems_tensor(here, base):  # which is read as well
                return True
    node = here.value(code)
    return node is not None and here.facts(here.evaluations[id(code)], x=node).is_int("x") is True


def _given_names(target: ast.expr, value: ast.expr, name: ast.expr) -> set[str]:
    """Return which names get what is made of one: ``b`` in ``a, b = 1, n // 2``; "" for others."""
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    held = (to for to, of in pairs if any(part is name for part in ast.walk(of)))
    return {to.id if isinstance(to, ast.Name) else "" for to in held} or {""}


def _are_numbers(here: Surroundings, name: str, known: frozenset[str]) -> bool:
    """Tell whether whatever has a name is used as a number alone."""
    if not name or name in here.flow.captured:
        return False
    loads = (n for n in here.nodes if isinstance(n, ast.Name) and n.id == name)
    return all(
        isinstance(n.ctx, ast.Store) or is_number_there(here, n, known) or meets_tensor(here, n)
        for n in loads
    )


def meets_tensor(here: Surroundings, name: ast.Name) -> bool:
    """Tell whether a number is computed with a tensor: ``ratios[:, 0] * h``, ``n + x[:, 0]``."""
    outer = here.parents.get(id(name))
    if not (isinstance(outer, ast.BinOp) and isinstance(outer.op, _BESIDE_TENSORS)):
        return False
    other = outer.left if outer.right is name else outer.right
    cut = isinstance(other, ast.Subscript) and isinstance(other.slice, ast.Tuple)
    return here.is_tensor(other) is True or (cut and here.is_tensor(other) is not False)


def propose_read(  # noqa: PLR0913, PLR0917 - all that is known of it
    here: Surroundings,
    code: ast.expr,
    base: ast.expr,
    at: ast.stmt,
    changes: tuple[Change, ...],
    shown: str,
) -> Proposal:
    """Return the read of a tensor at once, in front of a statement that reads parts of it."""
    proven = {"is-tensor"} if here.is_tensor(base) else set[str]()
    value = here.value(base)
    if value is not None and here.facts(here.evaluations[id(base)], x=value).ndim("x") == 1:
        proven.add("vector")
    if not isinstance(at, (ast.For, ast.While)) or is_left_alone(here, at, {root_name(base)}):
        proven.add("not-written-to")
    return Proposal(
        code,
        form="element_by_element",
        changes=changes,
        shown=shown,
        asked=(("x", here.text(base)),),
        asked_at=at,
        proven=frozenset(proven),
    )


def _element(here: Surroundings, code: ast.AST) -> Element | None:
    match code:
        case ast.Subscript(ast.Subscript(base, first), ast.Name() as last, ast.Load()) if has_root(
            base
        ) and is_implied(here, code):
            place = ast.Tuple([*list_indexes(first), last], ast.Load())  # ``x[i][j]``
            return Element(code, base, place)
        case ast.Subscript(base, ast.Name() | ast.BinOp() as index, ast.Load()) if has_root(
            base
        ) and is_implied(here, code):
            return Element(code, base, index)
        case ast.Call(ast.Attribute(ast.Subscript(base, index), "item"), [], []):
            return Element(code, base, index) if has_root(base) else None
        case ast.Call(ast.Name("int" | "float"), [ast.Subscript(base, index) as part], []):
            return Element(part, base, index) if has_root(base) else None
        case ast.Call(
            ast.Name("int" | "float"), [ast.Call(ast.Attribute(attr="item")) as read], []
        ):
            return _element(here, read)
    return None


def has_root(base: ast.expr) -> bool:
    """Tell whether it is a name, or an attribute of one."""
    return isinstance(base, ast.Name) or (
        isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name)
    )


def place_before(here: Surroundings, code: ast.expr, element: Element) -> ast.stmt | None:
    """Return the outermost loop, or the statement with a comprehension, that may read it before."""
    root = root_name(element.base)
    found: ast.stmt | None = None
    inner: ast.AST = code
    for outer in here.around(code):
        was, inner = inner, outer
        match outer:
            case ast.If(test) | ast.IfExp(test) if test is not was and root in list_names(test):
                break  # ``if lengths is not None:``
            case ast.For() | ast.While():
                if is_left_alone(here, outer, {root}) is False:
                    break
                # what is read again in each round is another number each time: ``count[0]``
                if list_names(element.place) & names_bound_in(outer):
                    found = outer
            case ast.stmt() if found is None and here.loop_of(outer) is None:
                found = outer if isinstance(outer, _SIMPLE) else None
                break
            case _ if isinstance(outer, COMPREHENSIONS) and any(
                root in list_stored_names(g.target) for g in outer.generators
            ):
                break
    alone = found is not None and not here.lines[found.lineno - 1][: here.span(found)[1]].strip()
    return found if alone else None


def is_plain(here: Surroundings, index: ast.expr) -> bool:
    """Tell whether an index is a Python number: a counter, and sums of it."""
    match index:
        case ast.Constant(value):
            return type(value) is int
        case ast.UnaryOp(ast.USub(), inner):
            return is_plain(here, inner)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return is_plain(here, left) and is_plain(here, right)
        case ast.Name(name):
            return all(
                _counts(target, items, name) or _goes_through_numbers(here, target, items)
                for target, items in _list_bindings(here, name)
            )
    return False


def _goes_through_numbers(here: Surroundings, target: ast.expr, items: ast.expr | None) -> bool:
    """Tell whether a loop is over positions that were found and copied: numbers of an array.

    ``for at in mask.nonzero().squeeze(1).cpu().numpy():``
    """
    node = None if items is None else here.value(items)
    if not isinstance(target, ast.Name) or node is None or node.op not in {"numpy", "tolist"}:
        return False
    found, is_flat = node.args[0], False
    while found.op in _FLAT | {"cpu", "detach", "to"}:
        found, is_flat = found.args[0], is_flat or found.op in _FLAT
    return are_found_positions(found) and (is_flat or found.op == Op.GETITEM)


def _list_bindings(here: Surroundings, name: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield where a name gets its values; without any loop what it is is not known."""
    found = False
    for node in here.nodes:
        match node:
            case ast.For(target, items) | ast.comprehension(target, items):
                if name in list_stored_names(target):
                    found = True
                    yield target, items
            case ast.Name(own, ast.Store()) if own == name:
                inside = any(
                    isinstance(o, (ast.For, ast.comprehension)) and node in ast.walk(o.target)
                    for o in here.around(node)
                )
                if not inside:
                    yield node, None
    if not found:
        yield ast.Name(name), None


def _counts(target: ast.expr, items: ast.expr | None, name: str) -> bool:
    match target, items:
        case _, ast.Call(ast.Name("reversed" | "tqdm"), [inner, *_]):
            return _counts(target, inner, name)
        case ast.Name(), ast.Call(called):
            return last_name(called) in {"range", "trange"}
        case ast.Tuple([ast.Name(first), *_]), ast.Call(ast.Name("enumerate")):
            return first == name
    return False


def _new_name(here: Surroundings, base: ast.expr) -> str:
    name = base.attr if isinstance(base, ast.Attribute) else root_name(base)
    taken = list_names(here.flow.names.tree or here.flow.function)
    return find_unused_name(f"{name.lstrip('_')}_list", taken)
