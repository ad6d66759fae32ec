"""Several numbers that one statement reads, each of which the host waits for: read at once.

::

                                           loss_value, kl_value = torch.stack([loss, kl]).tolist()
    log(loss=loss.item(), kl=kl.item())    log(loss=loss_value, kl=kl_value)

So are those that statements next to each other read: ``a = x.min().item()`` and the like.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.layout import join_lines
from npufix.rewriters.edit.statements.host.of_host import is_count, is_of_host
from npufix.rewriters.edit.statements.host.seldom import is_rare, is_seldom
from npufix.rewriters.edit.statements.host.trained import is_trained_on
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    last_name,
    list_names,
    list_stored_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
_LATER = (
    ast.Await, ast.BoolOp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda,
    ast.ListComp, ast.NamedExpr, ast.SetComp, ast.Yield, ast.YieldFrom,
)  # fmt: skip
"""In what nothing is read for sure, or not once, or whose parts have no place of their own."""
_OF_NUMBERS = frozenset({"float", "int", "round", "str"})

_ALL = frozenset({"is-tensor", "floats-of-one-device"})

_COUNTS = re.compile(r"(^|[_.])(n|nums?|counts?|correct|hits?|ids?|index|len|lengths?|steps?)(_|$)")
"""What integers are called: in one list with floats they would be floats."""


def read_at_once(
    here: Surroundings, code: ast.Call, found: Proposal, written: list[ast.stmt]
) -> Iterator[Proposal]:
    """Yield what was found of a read that is only logged; of several one, for all of them.

    What can be kept on the device is, unless only the one read is known to suit who gets it.
    ``written`` holds the statements for which that has been said.
    """
    statement = here.statement_of(code)
    together = None if statement in written else _read_all(here, code, statement)
    suits = "log-takes-tensors" in found.proven
    if together is not None and found.changes and (suits or together.proven != _ALL):
        together = None  # kept on the device, not even one is read
    if together is not None:
        written.append(statement)
    if together is not None or statement not in written:
        yield together or found


def read_in_turn(
    here: Surroundings, code: ast.Call, written: list[ast.stmt], alone: list[ast.stmt]
) -> Proposal | None:
    """Return one read for a number and those that the next statements read.

    ``written`` gets the statements for which that has been said; of those ``alone`` each keeps its
    value on the device.
    """
    statement = here.statement_of(code)
    if not _takes_one(statement) or is_seldom(here, code) or is_rare(here, code):
        return None
    group = [statement]
    for other in here.list_behind(statement):
        kept = list(map(_named, group))
        value = getattr(other, "value", None)
        if not _takes_one(other) or other in alone or value is None:
            break
        if any(named in map(ast.unparse, ast.walk(value)) for named in kept):
            break
        group.append(other)
    if len(group) == 1 or not all(map(here.whole_lines, group)) or not here.imports_torch:
        return None
    reads = [n for s in group for n in ast.walk(s) if isinstance(n, ast.Call) and _reads(n)]
    in_loop = here.loop_of(statement) is not None
    if in_loop and any(isinstance(_owner_of(n), ast.Subscript) for n in reads):
        return None  # one read before the loop is better still
    owners = [_owner_of(read) for read in reads]
    parts = _parts(here, owners)
    first, last = here.span(statement), here.span(group[-1])
    told = any("#" in line for line in here.lines[statement.lineno - 1 : last[2]])
    if code not in reads or parts is None or told:
        return None
    written += group
    new = _stacked([*map(_named, group)], [join_lines(part) or part for part in parts])
    return Proposal(
        code,
        form="read_apart",
        changes=(Change((*first[:2], *last[2:]), new),),
        shown=new,
        asked=tuple((f"x{n}", here.text(owner)) for n, owner in enumerate(owners)),
        proven=_proven(here, owners),
    )


def _takes_one(statement: ast.stmt) -> bool:
    """Tell whether a statement does nothing but give a number a name: ``a = x.max().item()``."""
    match statement:
        case ast.Assign(
            [ast.Name() | ast.Attribute(ast.Name())], ast.Call() as value
        ) | ast.AnnAssign(ast.Name(), _, ast.Call() as value):
            inner = value.args[0] if value.args and _names_number(value) else value
            return _reads(inner)
    return False


def _named(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign([target]) | ast.AnnAssign(target):
            return ast.unparse(target)
    return ""


def _names_number(code: ast.Call) -> bool:
    return isinstance(code.func, ast.Name) and code.func.id == "float" and len(code.args) == 1


def _read_all(here: Surroundings, code: ast.Call, statement: ast.stmt) -> Proposal | None:
    """Return one read for all of a statement, ``None`` if ``code`` is the only one.

    Nothing else may run between them: of ``f(a.item(), g(b), b.item())`` ``g`` may write to ``b``.
    """
    lines = here.whole_lines(statement)
    if not (isinstance(statement, _SIMPLE) and lines) or _runs_later(statement):
        return None
    reads = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and _reads(n)]
    if not here.imports_torch or not _run_together(here, statement, reads):
        return None
    return _read(here, code, statement, reads)


def _read(
    here: Surroundings, code: ast.Call, statement: ast.stmt, reads: list[ast.Call]
) -> Proposal | None:
    """Return one read in front of a statement, for those in it and in the next ones."""
    owners = {ast.dump(owner): owner for owner in map(_owner_of, reads)}
    if code not in reads or len(owners) == 1:
        return None
    parts = _parts(here, [*owners.values()])
    if parts is None:
        return None
    taken = list_names(here.flow.names.tree or here.flow.function)
    names: dict[str, str] = {}
    for key, owner in owners.items():
        called = last_name(owner) if isinstance(owner, (ast.Attribute, ast.Name)) else ""
        names[key] = find_unused_name(f"{called.lstrip('_') or 'read'}_value", taken)
        taken = {*taken, names[key]}
    head = _stacked([*names.values()], parts)
    place = (statement.lineno, 0, statement.lineno, 0)
    changes = [Change(here.span(n), names[ast.dump(_owner_of(n))]) for n in reads]
    return Proposal(
        code,
        form="read_apart",
        changes=(Change(place, f"{here.indent(statement)}{head}\n"), *changes),
        shown=head,
        asked=tuple((f"x{n}", here.text(owner)) for n, owner in enumerate(owners.values())),
        proven=_proven(here, [*owners.values()]),
    )


def _parts(here: Surroundings, owners: list[ast.expr]) -> list[str] | None:
    """Return the tensors that are stacked, ``None`` where integers are, or what they need acts."""
    parts: list[str] = []
    for owner in owners:
        at, node = here.evaluations.get(id(owner)), here.value(owner)
        if not only_computes(owner) or _COUNTS.search(here.text(owner)):
            return None
        whole = False
        if at is not None and node is not None:
            facts = here.facts(at, x=node)
            if is_count(node) or str(facts.dtype("x") or "float").startswith(("int", "bool", "u")):
                return None
            whole = facts.ndim("x") == 0
        parts.append(here.text(owner) if whole else f"{here.text_of_owner(owner)}.reshape(())")
    return None if any(is_of_host(here, owner) for owner in owners) else parts


def _stacked(names: list[str], parts: list[str]) -> str:
    read = ("torch.stack([", ", ".join(parts), "]).tolist()")
    return " = ".join((", ".join(names), "".join(read)))  # no message to be translated


def _proven(here: Surroundings, owners: list[ast.expr]) -> frozenset[str]:
    if all(is_trained_on(here, owner) for owner in owners):
        return _ALL
    return frozenset({"is-tensor"} if all(here.is_tensor(o) is True for o in owners) else ())


def _reads(code: ast.AST) -> bool:
    match code:
        case ast.Call(ast.Attribute(_, "item"), [], []):
            return True
    return False


def _owner_of(code: ast.Call) -> ast.expr:
    assert isinstance(code.func, ast.Attribute)  # noqa: S101 - ``_reads`` has looked
    return code.func.value


def only_computes(code: ast.expr) -> bool:
    """Tell whether code calls nothing but operators that write into nothing: ``x.mean()``."""
    called = (last_name(n.func) or "" for n in ast.walk(code) if isinstance(n, ast.Call))
    return all(
        operators.canonical_name(name) in operators.TABLE and not name.endswith("_")
        for name in called
    )


def _runs_later(statement: ast.stmt) -> bool:
    return any(isinstance(n, _LATER) for n in ast.walk(statement))


def _run_together(here: Surroundings, statement: ast.stmt, reads: list[ast.Call]) -> bool:
    """Tell whether no other call of the statement comes before one of the reads."""
    inside = {id(n) for read in reads for n in ast.walk(read)}
    around = [{id(n) for n in here.around(read)} for read in reads]
    stored = list_stored_names(statement)
    if any(stored & list_names(read) for read in reads) and isinstance(statement, ast.AugAssign):
        return False
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call) or id(call) in inside:
            continue
        of_all = all(id(call) in outer for outer in around)
        plain = isinstance(call.func, ast.Name) and call.func.id in _OF_NUMBERS
        if not of_all and not plain:
            return False
        if any(isinstance(n, ast.Call) for n in ast.walk(call.func)):
            return False
    return True
