"""Columns of a tensor that are picked by a list of numbers, or taken out one by one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_LATER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr)
"""Code that has names of its own, runs later, or has no exact place."""
_FEWEST = 3
"""Two columns are often all that is wanted of many; three in a row are taken to bits."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """``owner[prefix, first:end]``, or ``owner[prefix, first]`` where there is no end."""

    code: ast.Subscript
    prefix: str
    first: int
    end: int | None

    @property
    def behind(self) -> int:
        return self.first + 1 if self.end is None else self.end


def find_columns(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``a, b, c = x[..., 0], x[..., 1], x[..., 2]``, and the same in three statements."""
    for block in _blocks(here):
        for statement in block:
            match statement:
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values) as code) if len(
                    targets
                ) == len(values):
                    text = _split(here, targets, values)
                    if text is not None:
                        change = Change(here.span(code), text[0])
                        yield _proposal(code, text, (change,))
        yield from _one_by_one(here, block)


def _one_by_one(here: Surroundings, block: Sequence[ast.stmt]) -> Iterator[Proposal]:
    """Yield statements in a row that each take the next piece: ``w = boxes[..., 2:3].exp()``."""
    row: list[ast.Assign] = []
    for statement in [*block, None]:
        is_alike = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if isinstance(statement, ast.Assign) and is_alike and _continues(here, row, statement):
            row.append(statement)
            continue
        yield from _joined(here, row)
        row = [statement] if isinstance(statement, ast.Assign) and is_alike else []


def _joined(here: Surroundings, row: Sequence[ast.Assign]) -> Iterator[Proposal]:
    targets = [s.targets[0] for s in row]
    pieces = [piece for s in row if (piece := _only_piece(here, s.value)) is not None]
    lines = [at for s in row if (at := here.whole_lines(s)) is not None]
    if len(pieces) < len(row) or len(lines) < len(row) or _reads_too_early(row):
        return
    found = _split(here, targets, [piece.code for piece in pieces])
    if found is None:
        return
    text = f"{here.indent(row[0])}{', '.join(map(here.text, targets))} = {found[0]}\n"
    for statement, piece in zip(row, pieces, strict=True):
        line = here.lines[statement.lineno - 1]
        if piece.code is not statement.value:
            _, start, _, end = here.span(piece.code)
            text += f"{line[:start]}{here.text(statement.targets[0])}{line[end:]}"
        elif "#" in line:
            return  # whose comment would be lost
    whole = (*lines[0][:2], *lines[-1][2:])
    yield _proposal(row[0], found, (Change(whole, text),))


def _only_piece(here: Surroundings, code: ast.expr) -> _Piece | None:
    """Return ``x[:, 0]`` of ``x[:, 0].exp() * limits[3]``, ``None`` if ``x`` has another there."""
    found: list[_Piece] = []
    for node in ast.walk(code):
        match node:
            case ast.Subscript() if (piece := _piece(here, node)) is not None:
                found.append(piece)
            case ast.Call(ast.Attribute(_, name)) if _is_in_place(name):
                return None
            case _ if isinstance(node, _LATER):
                return None
    owners = [here.value(piece.code.value) for piece in found]
    alone = [
        piece
        for piece, owner in zip(found, owners, strict=True)
        if owners.count(owner) == 1 and (piece.prefix or len(found) == 1)
    ]
    return alone[0] if len(alone) == 1 else None


def _reads_too_early(row: Sequence[ast.Assign]) -> bool:
    """Tell whether a statement reads a name that now has its new value before: ``a = x[0] * b``."""
    bound = [target.id for s in row if isinstance(target := s.targets[0], ast.Name)]
    return any(
        isinstance(node, ast.Name) and node.id in bound[place:]
        for place, statement in enumerate(row)
        for node in ast.walk(statement.value)
    )


def _continues(here: Surroundings, row: Sequence[ast.Assign], new: ast.Assign) -> bool:
    """Tell whether a statement takes what follows the pieces of those before it."""
    if not row or new.lineno != row[-1].lineno + 1 or new.end_lineno != new.lineno:
        return False
    last, piece = (_only_piece(here, s.value) for s in (row[-1], new))
    return last is not None and piece is not None and _follows(here, last, piece)


def _blocks(here: Surroundings) -> Iterator[list[ast.stmt]]:
    yield here.flow.function.body
    for node in here.nodes:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield block


def _piece(here: Surroundings, code: ast.expr) -> _Piece | None:
    match code:
        case ast.Subscript(_, ast.Tuple([*others, last]), ast.Load()) if all(
            map(_is_whole, others)
        ):
            prefix = "".join(f"{here.text(other)}, " for other in others)
        case ast.Subscript(_, last, ast.Load()):
            prefix = ""
        case _:
            return None
    match last:
        case ast.Constant(int(place)) if type(place) is int and place >= 0:
            return _Piece(code, prefix, place, None)
        case ast.Slice(None, ast.Constant(int(end)), None):
            return _Piece(code, prefix, 0, end) if end > 0 else None
        case ast.Slice(ast.Constant(int(first)), ast.Constant(int(end)), None):
            return _Piece(code, prefix, first, end) if 0 <= first < end else None
    return None


def _follows(here: Surroundings, one: _Piece, other: _Piece) -> bool:
    same = one.prefix == other.prefix and (one.end is None) is (other.end is None)
    value = here.value(one.code.value)
    return (
        same and one.behind == other.first
        and value is not None and value is here.value(other.code.value)
    )  # fmt: skip


def _split(  # noqa: PLR0911 - a way out for each thing that speaks against it
    here: Surroundings, targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> tuple[str, frozenset[str]] | None:
    """Return the code for all pieces at once and what is known of it, ``None`` if there is none."""
    pieces = [piece for code in values if (piece := _piece(here, code)) is not None]
    if len(pieces) != len(values) or len(pieces) < _FEWEST or pieces[0].first != 0:
        return None
    if not all(_follows(here, *pair) for pair in pairwise(pieces)):
        return None
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    owner = pieces[0].code.value
    held = names | {ast.unparse(owner)}
    if len(names) != len(targets) or _is_changed(here, held, owner.lineno):
        return None
    at = here.evaluations.get(id(owner))
    if at is None:
        return None
    facts = here.facts(at, x=at.node)
    tensor = facts.is_tensor("x")
    if tensor is False or facts.is_without_gradients() or (not pieces[0].prefix and not tensor):
        return None
    if isinstance(owner, ast.Name) and owner.id in names:
        return None
    dim = _dimension(pieces[0])
    width = pieces[-1].behind
    known = facts.size("x", dim) == width
    text = here.text(owner) if known else f"{here.text(owner)}[{pieces[0].prefix}:{width}]"
    if pieces[0].end is None:
        text = f"{text}.unbind({dim})"
    else:
        widths = {piece.behind - piece.first for piece in pieces}
        sizes = [piece.behind - piece.first for piece in pieces]
        text = f"{text}.split({sizes[0] if len(widths) == 1 else sizes}, dim={dim})"
    proven = {"is-tensor"} if tensor else set()
    return text, frozenset(proven | ({"enough-columns"} if known else set()))


def _dimension(piece: _Piece) -> int:
    """Return the dimension that a piece is taken along."""
    return -1 if "..." in piece.prefix else piece.prefix.count(",")


def _is_changed(here: Surroundings, names: set[str], first: int) -> bool:
    """Tell whether a piece or its owner is written to where it is: parts of ``unbind`` forbid it.

    What stands above line ``first`` is done before, unless a loop comes by there again.
    """
    for node in here.nodes:
        if getattr(node, "lineno", 0) < first and here.loop_of(node) is None:
            continue
        match node:
            case ast.AugAssign(target) | ast.Subscript(target, ctx=ast.Store()):
                written: Sequence[ast.expr] = [target]
            case ast.Call(ast.Attribute(owner, method), args) if _is_in_place(method):
                written = [owner, *args[:1]]
            case ast.Call(_, args, keywords) if any(map(_asks_in_place, keywords)):
                written = [*args[:1], *(k.value for k in keywords)]
            case _:
                continue
        if any(ast.unparse(_whole_of(code)) in names for code in written):
            return True
    return False


def _whole_of(code: ast.expr) -> ast.expr:
    """Return ``x`` of ``x[0].view(-1)``."""
    while True:
        match code:
            case ast.Subscript(inner) | ast.Call(ast.Attribute(inner)):
                code = inner
            case _:
                return code


def _is_in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def _asks_in_place(given: ast.keyword) -> bool:
    return given.arg == "out" or (
        given.arg == "inplace"
        and not (isinstance(given.value, ast.Constant) and not given.value.value)
    )


def _is_whole(code: ast.expr) -> bool:
    match code:
        case ast.Slice(None, None, None):
            return True
    return isinstance(code, ast.Constant) and code.value is Ellipsis


def _proposal(
    code: ast.expr | ast.stmt,
    found: tuple[str, frozenset[str]],
    changes: tuple[Change, ...],
) -> Proposal:
    text, proven = found
    form = "columns" if ".unbind(" in text else "slices"
    return Proposal(code, form=form, changes=changes, shown=text, proven=proven)


def find_index_lists(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x[:, [0, 2]]`` where the numbers are a slice."""
    for node in here.nodes:
        match node:
            case ast.Subscript(owner, ast.Tuple(items), ast.Load()):
                lists = [item for item in items if isinstance(item, ast.List)]
                others = [item for item in items if item not in lists]
                text = slice_of(lists[0].elts) if len(lists) == 1 else None
                tensor = here.is_tensor(owner)
                if text is None or tensor is False or not all(map(_is_whole, others)):
                    continue
                if not here.is_hot and not tensor:
                    continue
                parts = [text if item is lists[0] else here.text(item) for item in items]
                new = f"{here.text(owner)}[{', '.join(parts)}].clone()"
                proven = frozenset({"is-tensor"} if tensor else ())
                change = Change(here.span(node), new)
                yield Proposal(node, changes=(change,), shown=new, proven=proven)


def slice_of(items: Sequence[ast.expr]) -> str | None:
    """Return ``0:5:2`` for ``0, 2, 4``, ``None`` for what is no slice of two places or more."""
    places = [item.value for item in items if isinstance(item, ast.Constant)]
    numbers = [place for place in places if type(place) is int and place >= 0]
    if len(numbers) != len(items) or len(numbers) < 2:  # noqa: PLR2004 - one may keep a dimension
        return None
    step = numbers[1] - numbers[0]
    if step < 1 or numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        return None
    end = numbers[-1] + 1
    return f"{numbers[0]}:{end}" if step == 1 else f"{numbers[0]}:{end}:{step}"
