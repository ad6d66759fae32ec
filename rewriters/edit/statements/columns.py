"""Columns of a tensor that are taken out one by one."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import OF_ARRAYS_TOO
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.nodes import Node
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.facts.site_facts import SourceFacts

_GIVEN = re.compile(
    r"(^|_)(gts?|targets?|labels?|coo?rds?|coors|idx|ind|ind(ic|ex)es|index|grid|thw|anchors?|priors?"
    r"|points?|voxels?|masks?|proposals?|rois?|(pos|neg|det)_bbox(es)?|freqs?|cis|rope|cos|sin"
    r"|corners?|lwh|xyz|distortions?|intrinsics?|extrinsics?)(_|$)"
)
"""What is called so is an input or a number of a place: nothing is propagated back to it."""
_MAKES_TARGETS = re.compile(r"(^|_)(get|gen|make)_\w*targets?(_|$)|(^|_)assign(_|$)|get_\w*bboxes")
"""Functions that compute without gradients what a loss compares with, or what is shown."""
_INFERS = re.compile(r"Inference|Predictor$|Post_?[Pp]rocess(or|ing)?$")
"""Classes that make results of what a trained model says: nothing is propagated back."""
_WHOLE = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8"})
_CUTS = operators.COMPARISONS | operators.INTEGERS | {"ceil", "detach", "floor", "round", "sign"}
"""What lets no gradient through."""
_OF_INTEGERS = re.compile(r"xor|[lr]shift|gcd")
"""What computes with whole numbers alone."""
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
    """Yield ``a, b, c = x[..., 0], x[..., 1], x[..., 2]``, and the same in several statements."""
    taken: set[int] = set()
    for block in _blocks(here):
        for statement in block:
            match statement:
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values) as code) if len(
                    targets
                ) == len(values):
                    text = _split(here, targets, values)
                    if text is not None:
                        taken.update(map(id, values))
                        change = Change(here.span(code), text[0])
                        yield _proposal(code, text, (change,))
    yield from _spread(here, taken)


def _blocks(here: Surroundings) -> Iterator[list[ast.stmt]]:
    yield here.flow.function.body
    for node in here.nodes:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield block


def _piece(here: Surroundings, code: ast.expr) -> _Piece | None:
    match code:
        case ast.Subscript(_, ast.Tuple([*others, last]), ast.Load()) if all(map(is_whole, others)):
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


def _spread(here: Surroundings, taken: set[int]) -> Iterator[Proposal]:
    """Yield columns that are read here and there, in any order.

    They are views, which cost nothing before the backward pass: so only what may have one.
    """
    function, cls = here.flow.function, here.flow.cls
    if not here.is_hot or _MAKES_TARGETS.search(function.name):
        return
    if cls is not None and _INFERS.search(cls.name):
        return
    found: dict[tuple[int, str, bool, str], list[_Piece]] = {}
    for node in here.nodes:
        if isinstance(node, ast.Subscript) and id(node) not in taken:
            piece = _piece(here, node)
            owner = node.value
            value = here.value(owner)
            # rows of the first dimension lie in one piece
            is_row = piece is not None and not piece.prefix and piece.end is None
            if piece and not is_row and value is not None and isinstance(owner, ast.Name):
                key = id(value), piece.prefix, piece.end is None, owner.id
                found.setdefault(key, []).append(piece)
    for (*_, name), pieces in found.items():
        if _GIVEN.search(name) or len(pieces) < _FEWEST or is_changed(here, {name}, 0):
            continue
        proposal = _gather(here, name, sorted(pieces, key=lambda p: here.span(p.code)))
        if proposal is not None:
            yield proposal


def _gather(here: Surroundings, name: str, reads: list[_Piece]) -> Proposal | None:
    """Return reads of columns that are taken out at once before the first of them."""
    first = here.statement_of(reads[0].code)
    at = here.whole_lines(first)
    block = next((b for b in _blocks(here) if first in b), [])
    every, reads = reads, [read for read in reads if _is_certain(here, read.code, block)]
    if len({read.first for read in every if read not in reads}) >= _FEWEST - 1:
        return None  # as many elsewhere: no one place takes them all out
    spans = sorted({(read.first, read.behind) for read in reads})
    # ``(x[..., 0] > 0) & (x[..., 0] < 1) & (x[..., 1] > 0) & (x[..., 1] < 1)``
    enough = len(spans) >= _FEWEST or (len(reads) > _FEWEST and len(spans) == _FEWEST - 1)
    if at is None or not enough or any(a[1] > b[0] for a, b in pairwise(spans)):
        return None
    owner = reads[0].code.value
    found = here.evaluations[id(owner)]
    if (here.facts(found, x=found.node).dtype("x") or "") in _WHOLE:
        return None  # of whole numbers nothing has a gradient
    known = _find_facts(here, owner, reads[0])
    bound = {name for read in reads for name in _list_bound_to(here, read.code)}
    is_written = any(_is_written_by_method(here, read.code) for read in reads)
    is_whole = any(_is_index(here, read.code) for read in reads)
    if (
        known is None
        or is_written
        or is_whole
        or not _learns(here, reads)
        or is_changed(here, bound, 0)
    ):
        return None
    names, gone = _names(here, name, reads, block)
    sizes, targets = _with_gaps(spans, names)
    gaps = targets.count("_")
    if gaps and (gaps > 1 or reads[0].end is None):
        return None
    text, proven = _take_at_once(here, owner, reads[0], sizes, known)
    line = f"{', '.join(targets)} = {text}"
    changes = [Change((at[0], 0, at[0], 0), f"{here.indent(first)}{line}\n")]
    for read in reads:
        whole = gone.get(id(read.code))
        new = Change(here.span(read.code), names[read.first])
        changes.append(new if whole is None else Change(whole, ""))
    form = "columns" if ".unbind(" in text else "slices"
    return Proposal(
        reads[0].code,
        form=form,
        changes=tuple(dict.fromkeys(changes)),
        shown=line,
        proven=frozenset(proven),
    )


def _learns(here: Surroundings, reads: Sequence[_Piece]) -> bool:
    """Tell whether a gradient may come back to pieces: not where all they become is detached."""
    pieces = {here.value(read.code) for read in reads}
    outer = [here.parents.get(id(read.code)) for read in reads]
    if any(isinstance(c, ast.Call) and "ensor" in (last_name(c.func) or "") for c in outer):
        return False  # ``torch.Tensor(x[:, 0])``: an array of NumPy
    todo, seen = [seen.node for seen in here.flow.observables], set[Node]()
    for node in todo:  # grows
        if node in pieces or node.op == Op.CARRIED:
            return True
        if node not in seen and node.op not in _CUTS:
            seen.add(node)
            todo += node.args
    return False


def _is_index(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a column holds whole numbers: it picks, or its bits are changed."""
    value = here.value(code)
    users = [] if value is None else here.users(value)
    return any(
        (user.op == Op.GETITEM and user.args[1] is value)
        or _OF_INTEGERS.fullmatch(user.op.removesuffix("(*)"))
        for user in users
    )


def _names(
    here: Surroundings, owner: str, reads: Sequence[_Piece], block: Sequence[ast.stmt]
) -> tuple[dict[int, str], dict[int, Span]]:
    """Return a name for each piece, by where it begins, and the lines that only bind such a name.

    Those are by the ``id`` of the code of the piece.
    """
    names: dict[int, str] = {}
    gone: dict[int, Span] = {}
    held = {id(read.code): read for read in reads}
    for statement in dict.fromkeys(here.statement_of(read.code) for read in reads):
        bound = _list_own_names(here, statement)
        own = [held.get(id(code)) for _, code in bound]
        starts = {read.first for read in own if read is not None}
        whole = here.whole_lines(statement)
        if statement not in block or whole is None or None in own:
            continue
        if not bound or len(starts) < len(own) or not starts.isdisjoint(names):
            continue
        assert isinstance(statement, ast.Assign)  # noqa: S101 - ``_list_own_names`` has looked
        only = isinstance(statement.value, ast.Tuple) or statement.value is bound[0][1]
        if only and "#" in "".join(here.lines[statement.lineno - 1 : statement.end_lineno]):
            continue  # a comment that would be gone too
        names |= {held[id(code)].first: name for name, code in bound}
        if only:
            gone |= {id(code): whole for _, code in bound}
    for read in reads:
        names.setdefault(read.first, _free_name(here, f"{owner}_{read.first}"))
    return names, gone


def _with_gaps(
    spans: Sequence[tuple[int, int]], names: Mapping[int, str]
) -> tuple[list[int], list[str]]:
    """Return sizes and names of all pieces up to the last one, ``_`` for what nobody needs."""
    sizes: list[int] = []
    targets: list[str] = []
    behind = 0
    for start, end in spans:
        if start > behind:
            sizes.append(start - behind)
            targets.append("_")
        sizes.append(end - start)
        targets.append(names[start])
        behind = end
    return sizes, targets


def _is_certain(here: Surroundings, code: ast.expr, block: Sequence[ast.stmt]) -> bool:
    """Tell whether code runs whenever a block does: not so in ``if x.size(-1) > 8: x[..., 8]``."""
    for outer in here.around(code):
        if isinstance(outer, ast.stmt):
            return outer in block and not isinstance(outer, (ast.If, ast.For, ast.While, ast.With))
        if isinstance(outer, (ast.IfExp, ast.BoolOp, ast.Lambda, *COMPREHENSIONS)):
            return False
    return False


def _list_bound_to(here: Surroundings, code: ast.expr) -> set[str]:
    """Return the names that stand for a piece: ``a`` of ``a, b = x[..., 0], x[..., 1] + 1``."""
    match here.statement_of(code):
        case ast.Assign(targets, ast.Tuple(values)) if code in values:
            given = [t.elts[values.index(code)] for t in targets if isinstance(t, ast.Tuple)]
        case ast.Assign(given, value) if _receiver(value) is code:
            pass
        case _:
            return set()
    return {target.id for target in given if isinstance(target, ast.Name)}


def _list_own_names(here: Surroundings, statement: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Return ``w`` and ``x[..., 2]`` of ``w = x[..., 2].exp()``, if it is a name for nothing else.

    Of ``v, w = x[..., 1], x[..., 2]`` both; nothing if one of them is a name for more.
    """
    match statement:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
            pairs = list(zip(targets, values, strict=True))
        case ast.Assign([target], value):
            pairs = [(target, _receiver(value))]
        case _:
            return []
    names = [target.id for target, _ in pairs if isinstance(target, ast.Name)]
    others = {a.arg for a in ast.walk(here.flow.function.args) if isinstance(a, ast.arg)}
    others |= set(here.flow.captured)
    others |= {n.id for n in here.nodes if isinstance(n, ast.Name) and n.lineno < statement.lineno}
    if len(set(names)) < len(pairs) or not others.isdisjoint(names):
        return []
    return [(name, code) for name, (_, code) in zip(names, pairs, strict=True)]


def _free_name(here: Surroundings, wanted: str) -> str:
    taken = {n.id for n in walk(here.flow.function) if isinstance(n, ast.Name)}
    taken |= {a.arg for a in ast.walk(here.flow.function.args) if isinstance(a, ast.arg)}
    free = (f"{wanted}{more}" for more in ("", *(f"_{n}" for n in range(2, len(taken) + 3))))
    return next(name for name in free if name not in taken)


def _receiver(code: ast.expr) -> ast.expr:
    """Return ``x[0]`` of ``x[0].exp()``."""
    while isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute):
        code = code.func.value
    return code


def _is_written_by_method(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a piece is changed where it is: ``x[..., 0].clamp_(0)``."""
    outer = here.parents.get(id(code))
    return isinstance(outer, ast.Attribute) and outer.attr.endswith("_")


def _split(
    here: Surroundings, targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> tuple[str, frozenset[str]] | None:
    """Return the code for all pieces at once and what is known of it, ``None`` if there is none."""
    pieces = [piece for code in values if (piece := _piece(here, code)) is not None]
    if len(pieces) != len(values) or len(pieces) < _FEWEST or pieces[0].first != 0:
        return None
    if not all(_follows(here, *pair) for pair in pairwise(pieces)):
        return None
    names, owner = {t.id for t in targets if isinstance(t, ast.Name)}, pieces[0].code.value
    if _GIVEN.search(ast.unparse(owner)) or _MAKES_TARGETS.search(here.flow.function.name):
        return None
    held = names | {ast.unparse(owner)}
    if len(names) != len(targets) or is_changed(here, held, owner.lineno):
        return None
    known = _find_facts(here, owner, pieces[0])
    if known is None or (isinstance(owner, ast.Name) and owner.id in names):
        return None
    sizes = [piece.behind - piece.first for piece in pieces]
    text, proven = _take_at_once(here, owner, pieces[0], sizes, known)
    return text, frozenset(proven)


def _find_facts(here: Surroundings, owner: ast.expr, piece: _Piece) -> SourceFacts | None:
    """Return what is known of a tensor whose columns are taken, ``None`` if nothing is gained."""
    at = here.evaluations.get(id(owner))
    if at is None:
        return None
    facts = here.facts(at, x=at.node)
    tensor = facts.is_tensor("x")
    if tensor is False or facts.is_without_gradients() or (not piece.prefix and not tensor):
        return None
    # Nothing but the code itself says that a function runs in steps which nobody here calls.
    return facts if here.is_hot or tensor or _meets_torch(here, at.node) else None


def _meets_torch(here: Surroundings, owner: Node) -> bool:
    """Tell whether an operator that arrays of NumPy do not have takes a part of a value."""
    parts = [part for part in here.users(owner) if part.op == Op.GETITEM]
    users = [user for part in parts for user in here.users(part)]
    users += [user for listed in users if listed.op == Op.LIST for user in here.users(listed)]
    return any(u.op in operators.TABLE and u.op not in OF_ARRAYS_TOO for u in users)


def _take_at_once(
    here: Surroundings,
    owner: ast.expr,
    piece: _Piece,
    sizes: Sequence[int],
    facts: SourceFacts,
) -> tuple[str, set[str]]:
    """Return the code for columns that follow each other, and the conditions that hold."""
    dim, width = (-1 if "..." in piece.prefix else piece.prefix.count(",")), sum(sizes)
    known = facts.size("x", dim) == width
    text = here.text(owner) if known else f"{here.text(owner)}[{piece.prefix}:{width}]"
    if piece.end is None:
        text = f"{text}.unbind({dim})"
    else:
        alike = len(set(sizes)) == 1
        text = f"{text}.split({sizes[0] if alike else list(sizes)}, dim={dim})"
    proven = {"is-tensor"} if facts.is_tensor("x") else set[str]()
    return text, proven | ({"enough-columns"} if known else set())


def is_changed(here: Surroundings, names: set[str], first: int) -> bool:
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
            case ast.Call(ast.Subscript(), args, keywords):  # ``kernel[grid](x, y)`` of Triton
                written = [*args, *(k.value for k in keywords)]
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


def is_whole(code: ast.expr) -> bool:
    """Tell whether an item of an index takes all of a dimension: ``:`` or ``...``."""
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
