"""What each round of a loop reads though one read or copy before the loop brings all of it.

::

                                        n_cpu = x.cpu()
    for i in range(n):                  for i in range(n):
        found.append(x[i].cpu())            found.append(n_cpu[i])

                                        longest = int(lengths.max().item())
    for row in rows:                    for row in rows:
        pad(row, int(lengths.max().item()))    pad(row, longest)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.edit.statements.host.element_reads import has_root, is_plain
from npufix.rewriters.edit.statements.host.iterated_values import number_made
from npufix.rewriters.edit.statements.host.waits.together import only_computes
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.rounds.written import (
    is_left_alone,
    list_given,
    list_written,
    read_whole,
)
from npufix.rewriters.edit.statements.surroundings import LOOPS
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    last_name,
    list_names,
    list_stored_names,
    names_bound_in,
    root_name,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.host.waits.reads import Read
    from npufix.rewriters.edit.statements.surroundings import Surroundings

FORM_ROWS, _FORM_NUMBER = "copied_by_row", "read_in_rounds"


def read_same(here: Surroundings, of: Read) -> Proposal | None:
    """Return a number that is the same in each round, read before the loop."""
    code, tensor = of.code, of.tensor
    if of.how not in {"item", "int", "float"}:
        return None
    read: ast.expr = code
    outer = here.parents.get(id(code))
    if isinstance(outer, ast.Call) and number_made(outer):
        read = outer
    names, found, sure = list_names(read) - {"int", "float", "bool"}, None, True
    if "self" in names or not only_computes(tensor) or not isinstance(tensor, ast.Call):
        return None
    for loop in (o for o in here.around(code) if isinstance(o, LOOPS)):
        alone = False if names & names_bound_in(loop) else is_left_alone(here, loop, names)
        given = list_given(here, walk(loop))
        if alone is False or (not alone and any(read_whole(a) & names for a in given)):
            break
        sure = sure and alone is True
        found = loop
    if found is None or not _begins_line(here, found):
        return None
    text = here.text(read)
    name = find_unused_name(
        f"{root_name(tensor)}_{last_name(tensor.func)}".strip("_"), _taken(here)
    )
    same = [n for n in walk(found) if isinstance(n, ast.Call) and ast.dump(n) == ast.dump(read)]
    head = f"{name} = {text}"
    return Proposal(
        code,
        form=_FORM_NUMBER,
        changes=(_before(here, found, head), *(Change(here.span(n), name) for n in same)),
        shown=head,
        asked_at=found,
        proven=frozenset({"not-written-to"} if sure else ()),
    )


def copy_before(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return one copy before the loop for what each round copies: ``x[i].cpu()`` and the like.

    Rows that the loop goes through are those of a copy: ``for row in x.cpu():``.
    """
    loop = here.loop_of(code)
    if not isinstance(loop, ast.For) or not _begins_line(here, loop):
        return None
    copies = [c for c in map(_copy_of, walk(loop)) if c and here.loop_of(c.code) is loop]
    whole = {id(c.code): _whole_of(here, loop, c.row, copies) for c in copies}
    copies = [c for c in copies if whole[id(c.code)] is not None]
    if code not in [c.code for c in copies]:
        return None
    taken = _taken(here)
    named: dict[str, str] = {}
    changes: list[Change] = []
    heads: list[str] = []
    bases: dict[str, ast.expr] = {}
    for copy in copies:
        base = whole[id(copy.code)]
        assert base is not None  # noqa: S101 - the others are left out
        text, detach = here.text(base), ".detach()" if copy.detached else ""
        if isinstance(copy.row, ast.Name):
            changes.append(Change(here.span(copy.code), f"{copy.row.id}{detach}"))
            if text not in bases:
                changes.append(Change(here.span(base), f"{text}.cpu()"))
        else:
            if text not in named:
                named[text] = find_unused_name(f"{text.rpartition('.')[2].lstrip('_')}_cpu", taken)
                taken = {*taken, named[text]}
                heads.append(f"{named[text]} = {text}.cpu()")
            row = f"{named[text]}[{here.text(copy.row.slice)}]"
            changes.append(Change(here.span(copy.code), f"{row}{detach}"))
        bases.setdefault(text, base)
    if heads:
        changes.append(_before(here, loop, *heads))
    known = all(here.is_tensor(base) is True for base in bases.values())
    alone = is_left_alone(here, loop, {root_name(base) for base in bases.values()})
    return Proposal(
        code,
        form=FORM_ROWS,
        changes=tuple(changes),
        shown="\n".join(heads or [f"{text}.cpu()" for text in bases]),
        asked=tuple((f"x{n}", text) for n, text in enumerate(bases)),
        asked_at=loop,
        proven=frozenset({"is-tensor"} if known else ()) | ({"not-written-to"} if alone else set()),
    )


class _Copy(NamedTuple):
    code: ast.Call
    row: ast.Name | ast.Subscript
    detached: bool


def _copy_of(code: ast.AST) -> _Copy | None:
    """Return what ``x[i].cpu()`` and ``row.detach().cpu()`` copy."""
    match code:
        case ast.Call(ast.Attribute(ast.Name() | ast.Subscript() as row, "cpu"), [], []):
            return _Copy(code, row, detached=False)
        case ast.Call(
            ast.Attribute(
                ast.Call(ast.Attribute(ast.Name() | ast.Subscript() as row, "detach"), [], []),
                "cpu",
            ),
            [],
            [],
        ):
            return _Copy(code, row, detached=True)
    return None


def _whole_of(
    here: Surroundings, loop: ast.For, row: ast.Name | ast.Subscript, copies: Sequence[_Copy]
) -> ast.expr | None:
    """Return the tensor whose rows a loop copies, ``None`` if it has no other name, or changes."""
    if isinstance(row, ast.Subscript):
        base: ast.expr | None = row.value if is_plain(here, row.slice) else None
        if not list_names(row.slice) & list_stored_names(loop.target):
            return None
    else:
        base = _iterated(loop.target, loop.iter, row.id)
        own = {id(copy.row) for copy in copies}
        uses = (n for n in here.nodes if isinstance(n, ast.Name) and n.id == row.id)
        if any(isinstance(n.ctx, ast.Load) and id(n) not in own for n in uses):
            return None
    if base is None or not has_root(base) or here.is_tensor(base) is False:
        return None
    changed = names_bound_in(loop) | {*list_written(loop)}
    return None if root_name(base) in changed else base


def _iterated(target: ast.expr, items: ast.expr, name: str) -> ast.expr | None:
    """Return ``y`` of ``for i, (a, b) in enumerate(zip(x, y))`` for ``b``."""
    match target, items:
        case ast.Name(own), _ if own == name:
            return items
        case ast.Tuple([_, inner]), ast.Call(ast.Name("enumerate"), [of]):
            return _iterated(inner, of, name)
        case ast.Tuple(targets), ast.Call(ast.Name("zip"), several):
            pairs = zip(targets, several, strict=False)
            return next((f for to, of in pairs if (f := _iterated(to, of, name))), None)
    return None


def _before(here: Surroundings, loop: ast.stmt, *heads: str) -> Change:
    text = "".join(f"{here.indent(loop)}{head}\n" for head in heads)
    return Change((loop.lineno, 0, loop.lineno, 0), text)


def _begins_line(here: Surroundings, loop: ast.stmt) -> bool:
    return not here.lines[loop.lineno - 1][: here.span(loop)[1]].strip()


def _taken(here: Surroundings) -> set[str]:
    return {*list_names(here.flow.names.tree or here.flow.function)}
