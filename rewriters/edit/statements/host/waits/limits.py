"""Limits and factors of a number that the host has read: what the device can apply as well.

::

    n = reduce_sum(count).item()        n = reduce_sum(count).detach().float().reshape(())
    n = max(n / world_size, 1.0)        n = (n / world_size).clamp(min=1.0)
    return loss.sum() / n               return loss.sum() / n
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.accumulated import keeps_memory
from npufix.rewriters.edit.statements.host.of_host import (
    ARITHMETIC,
    is_left_there,
    is_number,
    is_tensor,
)
from npufix.rewriters.edit.statements.host.waits.losses import takes_tensor
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import PRIMARIES
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import list_stored_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.modules.names import FunctionNode
    from npufix.rewriters.graph.nodes import Node

LIMITS = {"max": "min", "min": "max"}  # ``max(x, 1)`` is ``x.clamp(min=1)``
LIMITING = frozenset({"py:max", "py:min"})
_FORM_ITEM, _LIMIT_ALONE, _FORM_LIMIT = "item", "limit", "limit_of_item"
_WORLD = re.compile(r"(^|[._])(get_world_size|world_size|num_gpus|num_processes)$")
"""What says how many processes there are: a number of Python."""
TO_TENSORS = "what is computed with it can stay on the device: x.detach() instead of x.item()"
_AND_KEPT = (
    "a loss is computed with it, which the device can do: x.detach() instead of x.item(), and "
    "x.clamp(min=number) instead of max(x, number); who keeps it besides, an attribute or a "
    "dictionary, keeps a tensor then"
)
RUNNING = (
    "the host waits in every step for a running mean: keep it as a tensor, "
    "self.x.mul_(0.9).add_(x.detach(), alpha=0.1), or as a buffer, and read it where it is logged"
)
_MAKING = frozenset({"as_tensor", "new_tensor", "tensor"})
_DECIDING = operators.COMPARISONS | {Op.COMPARE, Op.BOOLOP, Op.NOT}
_OF_LOSSES = frozenset({"masked_fill", "mean", "sum", Op.PHI})
"""What is a loss where the first that it gets is one."""
_LISTS = frozenset({Op.LIST, Op.TUPLE})


def is_written_number(code: ast.expr) -> bool:
    """Tell whether code is a number, ``-1.5``."""
    match code:
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) | ast.Constant(value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
    return False


def is_limit(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is a number that the host has: written, or a setting ``self.low``.

    Every method that sets it writes a number, or hands on a parameter that is declared one, or has
    a number for its default.
    """
    match code:
        case ast.Attribute(ast.Name("self"), name) if here.flow.cls is not None:
            values = list_assigned(here.flow.names, here.flow.cls, name)
            return bool(values) and all(
                value is not None and _is_number_in(method, value) for method, value in values
            )
        case ast.Name():
            return _is_number_in(here.flow.function, code)
    return is_written_number(code)


def _is_number_in(method: FunctionNode, code: ast.expr) -> bool:
    """Tell whether code of a method is a number, or a parameter of it that is one and stays it."""
    if not isinstance(code, ast.Name):
        return is_written_number(code)
    spec = method.args
    by_place = [*spec.posonlyargs, *spec.args]
    without = [None] * (len(by_place) - len(spec.defaults))
    defaults = [*without, *spec.defaults, *spec.kw_defaults]
    pairs = zip([*by_place, *spec.kwonlyargs], defaults, strict=True)
    given = {arg.arg: (arg.annotation, default) for arg, default in pairs}
    declared, default = given.get(code.id, (None, None))
    if code.id not in given or code.id in list_stored_names(method):
        return False
    if declared is not None:
        return ast.unparse(declared) in {"float", "int"}
    return default is not None and is_written_number(default)


def keep_on_device(
    here: Surroundings, code: ast.Call, tensor: ast.expr, *, counts: bool
) -> Proposal | None:
    """Return how a number stays a tensor that limits and factors are applied to, before it is met.

    In Python it is one of double precision: the device computes with it in single precision.
    """
    value, at = here.value(code), here.evaluations.get(id(tensor))
    if value is None or at is None or (_cuts(code) and not counts):
        return None
    facts = here.facts(at, x=at.node)
    is_float = str(facts.dtype("x") or "").startswith(("float", "bfloat"))
    limits = _list_limits(here, value, as_it_is=counts or is_float)
    if limits is None or _is_read_twice(here, value) or "jit.script" in "".join(here.lines):
        return None
    own = [code] if isinstance(code.func, ast.Name) and code.func.id in LIMITS else []
    if own:  # ``max(x, 1.0)`` is ``x`` itself, or the number
        text = here.text_of_owner(tensor) + clamp(here, code, counts=counts)
    else:
        text = here.text_of_owner(tensor) if counts else here.text_detached(tensor)
        text += "" if counts or facts.dtype("x") == "float32" else ".float()"
        text += "" if facts.ndim("x") == 0 else ".reshape(())"
        text += ".clone()" if keeps_memory(here, code, tensor) else ""
    proven = {"is-tensor"} if facts.is_tensor("x") else set[str]()
    if counts or all(not is_limit(here, limit.args[0]) for limit in (*own, *limits)):
        proven.add("never-nan")  # ``max(x, 1.0)`` is NaN as well where x is
    changes = [Change(here.span(code), text)]
    for limit in limits:
        changes += clamp_one(here, limit, counts=counts)
    shown = "; ".join([text, *(clamp(here, limit, counts=counts) for limit in limits)])
    return Proposal(
        code,
        form=_LIMIT_ALONE if own else _FORM_LIMIT if limits else _FORM_ITEM,
        changes=tuple(changes),
        shown=shown,
        asked=(("x", here.text(tensor)),),
        proven=frozenset(proven),
    )


def _cuts(code: ast.Call) -> bool:
    return isinstance(code.func, ast.Name) and code.func.id == "int"


def _is_read_twice(here: Surroundings, value: Node) -> bool:
    """Tell whether code says the same twice: of ``max(x.item() / 2, 1)`` each is one of its own."""
    said = (e.code for e in here.flow.by_operation.get(value.op, ()) if e.node is value)
    return sum(isinstance(code, ast.Call) for code in said) > 1


def _list_limits(here: Surroundings, value: Node, *, as_it_is: bool) -> list[ast.Call] | None:
    """Return each ``max(n / 8, 1)`` on the way of a number to tensors, ``None`` if others get it.

    On the way it meets numbers of the host alone; who gets it in the end computes with tensors, as
    losses do. If it does not stay ``as_it_is``, it becomes a float: ``ids + n.item() * 2`` may be
    one of integers, ``ids / (n.item() * 2)`` and ``ids + n.item() / 2`` are floats anyway.
    """
    found: list[ast.Call] = []
    todo, met = [value], False
    floats = [value] if as_it_is else []
    for made in todo:  # grows
        users = here.users(made)
        if any(o.node is made for o in here.flow.observables) or not (users or made.op == Op.PHI):
            return None
        for user in users:
            if _ends(here, user, made):
                if not _may_end(user, made, is_float=made in floats):
                    return None
                met = True
                continue
            limit = limit_of(here, user, made) if user.op in LIMITING else None
            if limit is None and user.op != Op.PHI and not _meets_number(user, made):
                return None
            found += [] if limit is None else [limit]
            floats += [user] if _stays_float(user, floats) else []
            todo += [] if user in todo else [user]
    # ``n.item() if x else 1.0``: a number of Python has no ``clamp``
    mixed = any(p.op == Op.PHI and not set(p.args[1:]) <= set(todo) for p in todo)
    return found if met and not (mixed and found) else None


def _ends(here: Surroundings, user: Node, made: Node) -> bool:
    """Tell whether a tensor or a loss gets a number."""
    if user.op == Op.CALL:
        return takes_tensor(user, made)
    return user.op in ARITHMETIC and _meets_tensor(here, user, made)


def _may_end(user: Node, made: Node, *, is_float: bool) -> bool:
    """Tell whether a tensor of the device may be what a tensor gets in place of a number.

    A tensor of the host meets numbers alone, and one of integers may need an integer.
    """
    others = (arg for arg in user.args if arg is not made)
    return is_float or user.op in {Op.CALL, "div"} or all(map(is_loss, others))


def _stays_float(user: Node, floats: list[Node]) -> bool:
    """Tell whether a number is no integer of Python any more: ``n / 8``."""
    if user.op == Op.PHI:
        return all(arg in floats for arg in user.args[1:])
    return user.op == "div" or any(a in floats or type(a.value) is float for a in user.args)


def tell_met(here: Surroundings, value: Node) -> str:
    """Return what to do with a number that tensors meet, and perhaps others; "" if none does."""
    todo, met, others = [value], 0, 0
    for made in todo:  # grows
        others += any(o.node is made for o in here.flow.observables)
        for user in here.users(made):
            if user.op.removesuffix("(*)") in _DECIDING:
                return ""
            if (user.op in ARITHMETIC and _meets_tensor(here, user, made)) or (
                user.op == "clamp" and user.args[0] is not made
            ):
                met += 1
            elif user.op in {Op.PHI, *LIMITING} or _meets_any(user, made):
                todo += [] if user in todo else [user]
            else:
                others += 1
    return "" if not met else _AND_KEPT if others else TO_TENSORS


def _meets_tensor(here: Surroundings, user: Node, made: Node) -> bool:
    others = [arg for arg in user.args if arg is not made]
    tensors = bool(others) and all(is_tensor(here, o) or is_loss(o) for o in others)
    return tensors and not any(is_left_there(here, other) for other in others)


def is_loss(node: Node) -> bool:
    """Tell whether a value is what a loss function returns: ``focal_loss(x, y)``."""
    while node.args and (node.op in _OF_LOSSES or node.op.endswith("_")):
        node = node.args[0]
    if node.op == "mul":  # ``(l1_loss(x, y) * weight).sum()``
        return any(map(is_loss, node.args))
    return node.op == Op.CALL and takes_tensor(node, node)


def _meets_number(user: Node, made: Node) -> bool:
    """Tell whether a number meets numbers alone; who divides by it, or what it divides, is one."""
    others = [arg for arg in user.args if arg is not made]
    if user.op not in ARITHMETIC or any(o.op in _LISTS for o in others):
        return False
    return user.op == "div" or all(is_number(o) or _is_of_host(o) for o in others)


def _meets_any(user: Node, made: Node) -> bool:
    """Tell whether a number is computed with: what it meets may be a setting, no list."""
    others = [arg for arg in user.args if arg is not made]
    return user.op in ARITHMETIC and not any(o.op in _LISTS for o in others)


def find_running(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a running mean gets a number: ``self.m = 0.9 * self.m + 0.1 * x.item()``."""
    match here.statement_of(code):
        case ast.Assign([ast.Attribute(ast.Name("self")) as kept], ast.BinOp() as value):
            held = ast.unparse(kept)
        case _:
            return False
    inside = [n for n in ast.walk(value) if isinstance(n, ast.Attribute)]
    around = itertools.takewhile(lambda n: isinstance(n, ast.BinOp), here.around(code))
    return held in map(ast.unparse, inside) and value in around


def tell_copied(here: Surroundings, value: Node) -> bool:
    """Tell whether a number goes into a tensor again: ``x.new_tensor([[token.item()]])``."""
    todo = [value]
    for made in todo:  # grows
        for user in here.users(made):
            if user.op in _MAKING and (made is not user.args[0] or user.op != "new_tensor"):
                return True
            if user.op in {*_LISTS, "py:int", "py:float"} and user not in todo:
                todo.append(user)
    return False


def _is_of_host(node: Node) -> bool:
    named = str(node.args[0].value if node.op == Op.CALL else node.value or "")
    return node.op in {"item", "py:float", "py:int"} or _WORLD.search(named) is not None


def limit_of(here: Surroundings, user: Node, made: Node) -> ast.Call | None:
    """Return ``max(n, 1)``, which is a user of ``n``, as it is written in one place alone."""
    said = [e.code for e in here.flow.by_operation.get(user.op, ()) if e.node is user]
    calls = [code for code in said if isinstance(code, ast.Call)]
    match calls:
        case [ast.Call(ast.Name("max" | "min"), [first, second], []) as call]:
            kept = [c for c in (first, second) if not is_limit(here, c)]
            return call if len(kept) == 1 and here.value(kept[0]) is made else None
    return None


def may_be_float(here: Surroundings, limit: ast.Call | None, users: Sequence[Node]) -> bool:
    """Tell whether the limit of a count makes floats of integers now and then: ``max(n, 0.5)``."""
    if limit is None:
        return False
    number = next(c for c in limit.args if is_limit(here, c))
    whole = is_written_number(number) and float(ast.literal_eval(number)).is_integer()
    return not whole and not all(u.op in {"div", Op.CALL} for u in users)


def clamp_one(here: Surroundings, limit: ast.Call, *, counts: bool) -> list[Change]:
    """Return the changes that make ``(n / 8).clamp(min=1)`` of ``max(n / 8, 1)``."""
    kept = next(c for c in limit.args if not is_limit(here, c))
    first, start, last, end = here.span(limit)
    from_line, from_column, to_line, to_column = here.span(kept)
    opening, closing = ("", "") if isinstance(kept, PRIMARIES) else ("(", ")")
    return [
        Change((first, start, from_line, from_column), opening),
        Change((to_line, to_column, last, end), f"{closing}{clamp(here, limit, counts=counts)}"),
    ]


def clamp(here: Surroundings, limit: ast.Call, *, counts: bool) -> str:
    """Return ``.clamp(min=1)`` for ``max(n, 1)``."""
    assert isinstance(limit.func, ast.Name)  # noqa: S101 - ``limit_of`` has looked
    number = next(c for c in limit.args if is_limit(here, c))
    return f".clamp({LIMITS[limit.func.id]}={_spell(here, number, counts=counts)})"


def _spell(here: Surroundings, number: ast.expr, *, counts: bool) -> str:
    """Return a limit as it is written; of integers it is one as well, ``1.0`` would make floats."""
    value = ast.literal_eval(number) if counts and is_written_number(number) else None
    if value is not None and float(value).is_integer():
        return str(int(value))
    return here.text(number)
