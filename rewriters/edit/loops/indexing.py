"""``x[i, a:b, j[i]]`` for all rounds: slices, or index vectors where each round picks."""

from __future__ import annotations

import ast
import re
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.places import Place, Ragged, name_piece
from npufix.rewriters.edit.loops.given.subscripts import spell_items
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    OF_A_LIST,
    CannotBatchError,
    Kind,
    Value,
    at_dimension,
    everything,
    literal,
    method,
    owned,
    parse,
    shift,
)
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.facts.ranks import RelativeRank
from npufix.rewriters.graph.modules.syntax import nodes_of
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.expressions import Expressions
    from npufix.rewriters.facts.ranks import Rank

WINDOWS = "it reads or writes a window that moves along"
UNKNOWN_INDEX = "an index in it is of an unknown kind"
OTHER_ROUND = "a round reads what another round writes"
OUT_OF_ROUND = "its counter may lie outside of what it indexes"
OF_HOST = "it picks from a table of the host, which takes no index of the device"
_VECTORS = frozenset({"argsort", "flatten", "list", "nonzero", "ravel", "reshape", "view"})
_OF_LISTS = re.compile(
    r"ListComp\(elt=(List\(|Tuple\(|ListComp|Call\(func=Name\(id='(list|tuple)')"
)


class Indexer:
    """Reads the subscripts of one loop."""

    def __init__(self, of: Expressions) -> None:
        self.of: Expressions = weakref.proxy(of)  # it would keep the tree of the module
        self.reads: list[ast.expr] = []
        """The tensors of which rows are read."""
        self.own_reads: list[ast.expr] = []
        """Those to whose rows the same round writes."""

    def _base(self, code: ast.expr) -> Value:
        """Return what rows are taken of; those of what a round writes to are its own."""
        if ast.unparse(code) in self.of.own_rows:
            return Value(Kind.SAME, code, self.of.facts.rank(code))
        return self.of.read(code)

    def read(self, code: ast.Subscript) -> Value:  # noqa: C901 - one case a kind
        """Return what a subscript is for all rounds."""
        code = self._in_one(code)
        base = self._base(code.value)
        items = spell_items(code.slice, base.rank)
        if base.kind is Kind.NUMBER:
            raise CannotBatchError(UNKNOWN_INDEX)
        if base.kind is Kind.ENTRY:
            base = self.of.aligner.tensor(base)
        rows = base.axis if base.kind is Kind.ROWS else None
        place = self.place(base.code if rows is None else None, items, rows, base.asked)
        part = None
        if place.ragged:
            if ast.unparse(code.value) in self.of.own_rows:
                raise CannotBatchError(LENGTHS)
            part = self.of.parts.take(place, base.code, is_row=rows is not None)
        self._copy_index(place, code.value)
        made = place.of(base.code)
        rank: Rank = None
        if base.rank is not None and place.is_known:
            rank = shift(base.rank, place.kept - place.consumed)
        if part is not None and (part.dim or self.of.facts.assumes):
            rank = self.of.facts.rank_of(rank)
        if rows is None:
            self.require_own_row(code.value, place)
            if self._is_entry(code.value, place):
                return Value(Kind.ENTRY, made, rank, source=base.asked)
            if self.of.facts.is_tensor(code.value) is not True:
                several = isinstance(code.slice, ast.Tuple) or self._picks_several(items)
                if not (several or place.pieces):
                    raise CannotBatchError(OF_A_LIST)  # a dictionary, a list of anything
                self.of.ask_for_tensor(code.value)
        return Value(Kind.ROWS, made, rank, place.axis, fresh=not place.is_view,
                     source=base.asked, part=part)  # fmt: skip

    def _picks_several(self, items: list[ast.expr]) -> bool:
        """Tell whether an index is a vector in each round, which no list takes."""
        ranks = (self.of.read(i).rank for i in items if not isinstance(i, ast.Slice))
        return any(isinstance(rank, int) and rank > 0 for rank in ranks)

    def _copy_index(self, place: Place, table: ast.expr) -> None:
        """Bring an index to a table of the host, as each ``table[i]`` did with its own."""
        if place.by_tensor and self._is_of_host(table):
            if self.of.depends(table) or len(place.items) != 1:
                raise CannotBatchError(OF_HOST)
            place.items = [method(place.items[0], "cpu")]

    def _in_one(self, code: ast.Subscript) -> ast.Subscript:
        """Return ``x[i, 3]`` for ``x[i][3]``, of what may be a tensor."""
        match code:
            case ast.Subscript(ast.Subscript(root, ast.Name() as row), ast.Constant(int()) as item):
                if not self.of.depends(root) and self.of.facts.is_tensor(root) is None:
                    both = ast.Tuple([row, item], ast.Load())
                    return ast.copy_location(ast.Subscript(root, both, ast.Load()), code)
        return code

    def _is_entry(self, code: ast.expr, place: Place) -> bool:
        """Tell whether ``lengths[i]`` may be a number out of a list."""
        plain = place.is_view and place.pieces is None
        return self.of.facts.is_tensor(code) is not True and len(place.items) == 1 and plain

    def require_own_row(self, code: ast.expr, place: Place) -> None:
        """Note what a round reads, and refuse another row of what is written."""
        if (written := self.of.own_rows.get(ast.unparse(code))) is None:
            self.reads.append(code)
        elif written[0] is None or (place.piece or place.offset, place.source_dim) != written:
            raise CannotBatchError(OTHER_ROUND)
        else:
            self.own_reads.append(code)

    def place(  # noqa: C901 - one case a kind of item
        self, base: ast.expr | None, items: list[ast.expr], rows: int | None, asked: ast.expr
    ) -> Place:
        """Return the index of all rounds.

        ``base`` -- the tensor, where its rounds are rows of it; else ``rows`` says which
        dimension of it are the rounds already, and ``asked`` whose device it has.
        """
        found = Place(axis=-1)
        picks = self._picks(items)
        by_vectors = (bool(picks) and rows is not None) or len(picks) > 1
        by_vectors |= any(v.kind is not Kind.NUMBER or v.offset is None for v in picks)
        ranks = [v.rank for v in picks if isinstance(v.rank, int)]
        deepest = max(ranks, default=0) if by_vectors else 0
        for item in items:
            if rows is not None and found.consumed == rows and found.axis < 0:
                self._rounds(found, asked, deepest, by_vectors=by_vectors)
            size = None if base is None else self.piece(item)
            if isinstance(item, ast.Slice) and base is not None and size is not None:
                self._piece(found, item, size, base)
            elif isinstance(item, ast.Slice) and (one := self._single(found, item, base)):
                self._row(found, one, base)
                found.items.append(ast.Constant(None))
                found.kept += 1
            elif isinstance(item, ast.Slice):
                self._slice(found, item)
            elif isinstance(item, ast.Constant) and item.value is None:
                found.items.append(item)
                found.kept += 1
            elif not self.of.depends(item):
                self._fix(found, item, by_vectors=by_vectors)
            else:
                value = self._pick_of(item)
                if by_vectors:
                    self._pick(found, value, asked, deepest)
                else:
                    self._row(found, value, base)
        if rows is not None and found.axis < 0:
            missing = rows - found.consumed
            found.items += [everything()] * missing
            found.kept += missing
            found.consumed += missing
            self._rounds(found, asked, deepest, by_vectors=by_vectors)
        if found.axis < 0:
            raise CannotBatchError(UNKNOWN_INDEX)
        found.kept += deepest
        found.is_view &= not by_vectors
        return found

    def require_own_rows(self, items: list[ast.expr]) -> None:
        """Refuse a write to rows that two rounds may pick."""
        if any(self.piece(i) for i in items):
            return
        read = [
            self.of.read(i) for i in items if not isinstance(i, ast.Slice) and self.of.depends(i)
        ]
        if not any(v.kind is Kind.NUMBER and v.offset is not None for v in read):
            raise CannotBatchError(OTHER_ROUND)

    def _picks(self, items: list[ast.expr]) -> list[Value]:
        """Return the indexes that depend on the round, but for slices."""
        chosen = [i for i in items if not isinstance(i, ast.Slice) and self.of.depends(i)]
        found = [self._pick_of(i) for i in chosen]
        for item, value in zip(chosen, found, strict=True):
            if self.of.facts.is_mask(item) or (
                value.kind is not Kind.NUMBER and self._is_mask(item)
            ):
                raise CannotBatchError(LENGTHS)
        return found

    def _pick_of(self, item: ast.expr) -> Value:
        """Return an index of each round: a vector where all of them surely have columns."""
        value, facts = self.of.read(item), self.of.facts
        if value.kind is Kind.ROWS and not isinstance(value.rank, int) and self._is_cut(item):
            raise CannotBatchError(UNKNOWN_INDEX)  # ``x[i, y[i, :]]``
        if not isinstance(value.rank, RelativeRank) or value.kind is not Kind.ROWS:
            return value
        if facts.shapes.least_rank(value.rank.base) + value.rank.more != 1:
            return value
        return replace(value, rank=facts.assume(value.rank, 1, value.asked))

    def _is_mask(self, item: ast.expr) -> bool:
        return any(self.of.facts.is_mask(part) for part in ast.walk(item))

    def _rounds(self, found: Place, asked: ast.expr, deepest: int, *, by_vectors: bool) -> None:
        """Keep the rounds that a tensor has already."""
        found.axis = found.kept
        if by_vectors:
            found.axis = self._axis_of_vectors(found)
            count = self.of.aligner.rounds(asked)
            found.items.append(at_dimension(count, deepest))
        else:
            found.items.append(everything())

    @staticmethod
    def _axis_of_vectors(found: Place) -> int:
        """Return where index vectors that stand together put their dimensions: in their place."""
        if not all(isinstance(item, ast.Slice) for item in found.items):
            raise CannotBatchError(UNKNOWN_INDEX)
        return found.kept

    def _slice(self, found: Place, item: ast.Slice) -> None:
        bounds = [b for b in (item.lower, item.upper) if b is not None]
        for bound in bounds:
            if not self.of.depends(bound):
                self.of.require_pure(bound)
        if any(map(self.of.depends, bounds)):
            if item.step is not None:
                raise CannotBatchError(WINDOWS)
            lower = None if item.lower is None else self.of.read(item.lower)
            upper = None if item.upper is None else self.of.read(item.upper)
            found.ragged.append(Ragged(found.kept, found.consumed, lower, upper))
            item = everything()
        elif item.step is not None and self.of.depends(item.step):
            raise CannotBatchError(WINDOWS)
        found.items.append(item)
        found.kept += 1
        found.consumed += 1

    def _single(self, found: Place, item: ast.Slice, base: ast.expr | None) -> Value | None:
        """Return ``i`` of ``x[:, i : i + 1]``, where that is in ``x`` in all rounds."""
        node = None if base is None else self.of.facts.node(base)
        if node is None or item.lower is None or item.upper is None or item.step is not None:
            return None
        low = self.of.read(item.lower)
        end = ast.BinOp(item.lower, ast.Add(), ast.Constant(1))
        same = ast.unparse(self.of.aligner.spelled(item.upper)) == ast.unparse(
            self.of.aligner.spelled(end)
        )
        if low.offset is None or not same or found.axis >= 0 or not found.is_view:
            return None
        domain, at = self.of.domain, found.consumed
        return low if self.of.facts.spans(domain.stop_node, node, at, low.offset) else None

    def piece(self, item: ast.expr) -> ast.expr | None:
        """Return ``n`` of the pieces ``i * n : (i + 1) * n``, or of ``i::n`` in n rounds."""
        if not isinstance(item, ast.Slice):
            return None
        domain = self.of.domain
        low = None if item.lower is None else self.of.aligner.spelled(item.lower)
        match low, item.step:
            case ast.Name(counter), step if step is not None and item.upper is None:
                alike = ast.unparse(step) == ast.unparse(domain.stop) and not domain.start
                own = self.of.env.get(counter)
                return step if alike and own is not None and own.offset == 0 else None
        match low:
            case ast.BinOp(ast.Name(counter), ast.Mult(), size) if not self.of.depends(size):
                pass
            case ast.BinOp(size, ast.Mult(), ast.Name(counter)) if not self.of.depends(size):
                pass
            case _:
                return None
        given = self.of.env.get(counter)
        match domain.stop:  # ``range(n // size + 1)``: the last piece is what is left
            case ast.BinOp(_, ast.Add(), ast.Constant(1)):
                return None
        if item.upper is None or item.step is not None or given is None or given.offset != 0:
            return None
        n, one, start = ast.unparse(size), f"{counter} + 1", ast.unparse(low)
        ends = {f"({one}) * {n}", f"{n} * ({one})", f"{start} + {n}", f"{n} + {start}"}
        upper = ast.unparse(self.of.aligner.spelled(item.upper))
        return size if upper in ends and not domain.start else None

    def _piece(self, found: Place, item: ast.Slice, size: ast.expr, base: ast.expr) -> None:
        """Take a piece of a dimension in each round."""
        if found.axis >= 0 or not found.is_view:
            raise CannotBatchError(WINDOWS)
        stop = self.of.domain.stop
        if not self.of.facts.is_count(self.of.domain.stop_node):
            self.of.conditions["nonnegative-count"] = None
        self.of.conditions["whole-pieces"] = None
        length = parse(f"{owned(base)}.shape[{found.consumed}]")
        found.axis, found.source_dim = found.kept, -1
        found.piece = name_piece(item, size, found.consumed)
        if item.step is None:
            end = ast.BinOp(stop, ast.Mult(), size)
            left: ast.expr = ast.BinOp(length, ast.Sub(), end)
            found.items.append(ast.Slice(None, end, None))
            found.pieces = stop, size
        else:  # ``x[i::n]`` is every ``n``-th, of pieces of ``n``
            left = ast.UnaryOp(ast.USub(), ast.BinOp(length, ast.Mod(), size))
            found.items.append(everything())
            found.pieces = literal(-1), size
            found.axis += 1
        if all(ast.unparse(code) != ast.unparse(left) for code in self.of.shown.values()):
            number = sum(name.startswith("left") for name in self.of.shown)
            self.of.shown[f"left{number or ''}"] = left
        found.kept += 1
        found.consumed += 1

    def _fix(self, found: Place, item: ast.expr, *, by_vectors: bool) -> None:
        """Take an index that is the same in all rounds."""
        self.of.require_pure(item)
        facts = self.of.facts
        if isinstance(item, ast.Constant) and not isinstance(item.value, int):
            raise CannotBatchError(UNKNOWN_INDEX)
        whole = isinstance(item, ast.Constant) or facts.is_int(item) or _is_negative(item)
        if not whole:
            rank = 1 if self.of.is_vector(item) else facts.rank(item)
            if isinstance(rank, int) and rank != 1:
                # Of two dimensions a mask takes two, an index one.
                raise CannotBatchError(UNKNOWN_INDEX)
            if found.axis < 0 or by_vectors:
                raise CannotBatchError(UNKNOWN_INDEX)
            if not found.is_view:  # two index vectors: their dimensions may move to the front
                raise CannotBatchError(UNKNOWN_INDEX)
            found.is_known &= rank == 1
            found.kept += 1
            found.is_view = False
        found.items.append(item)
        found.consumed += 1

    def _row(self, found: Place, value: Value, base: ast.expr | None) -> None:
        """Take ``i + c`` as the rows from ``c`` on."""
        assert value.offset is not None  # noqa: S101 - the caller has looked
        assert base is not None  # noqa: S101 - else the rounds are rows already
        if found.axis >= 0:  # ``x[n * i : n * (i + 1), i]``, a diagonal of pieces
            raise CannotBatchError(WINDOWS)
        domain, facts = self.of.domain, self.of.facts
        node = facts.node(base)
        first = domain.start + value.offset
        if first < 0 or node is None:
            raise CannotBatchError(OUT_OF_ROUND)
        stop: ast.expr | None = None
        if not facts.spans(domain.stop_node, node, found.consumed, value.offset):
            if not facts.is_count(domain.stop_node, value.offset):
                self.of.conditions["nonnegative-count"] = None
            stop = _plus(domain.stop, value.offset)
        lower = ast.Constant(first) if first else None
        found.axis, found.offset, found.source_dim = found.kept, value.offset, found.consumed
        found.items.append(ast.Slice(lower, stop, None))
        found.consumed += 1

    def _is_of_host(self, code: ast.expr) -> bool:
        node = self.of.facts.node(code)
        return node is not None and is_made_on_host(node)

    def _is_cut(self, index: ast.expr) -> bool:
        """Tell whether a slice leaves a dimension of an index, whatever it is taken from."""
        node = self.of.facts.node(index)
        parts = node.args[1].args if node is not None and node.op == Op.GETITEM else ()
        return any(part.op == Op.SLICE for part in parts)

    def _holds_lists(self, code: ast.expr) -> bool:
        """Tell whether what the rounds go over holds lists: ``[list(p) for p in orders]``.

        Or vectors that were put into it: ``places.append(x.topk(k)[1].flatten())``.
        """
        node, text = self.of.facts.node(code), ast.unparse(code)
        is_empty = is_filled = False
        for other in nodes_of(self.of.facts.flow.function):
            match other:
                case ast.Assign([kept], ast.List([])) if ast.unparse(kept) == text:
                    is_empty = True
                case ast.Call(ast.Attribute(owner, "append"), [put]) if ast.unparse(owner) == text:
                    is_filled = True
                    match put:
                        case ast.Call(ast.Attribute(_, made) | ast.Name(made)) if made in _VECTORS:
                            return True
        if is_empty and not is_filled:
            return True  # ``places = []``, or what another function has put into such a list
        parts = () if node is None or node.op != Op.CONTAINER else node.args
        return any(_OF_LISTS.match(str(part.value)) for part in parts)

    def _pick(  # noqa: C901 - one case a kind of index
        self, found: Place, value: Value, asked: ast.expr, deepest: int
    ) -> None:
        """Take an index of each round as a vector."""
        if found.axis < 0:
            found.axis = self._axis_of_vectors(found)
        elif found.items and isinstance(found.items[-1], (ast.Slice, ast.Constant)):
            raise CannotBatchError(UNKNOWN_INDEX)
        of_host = value.is_listed and " in range(" in ast.unparse(value.code)  # it would be copied
        if of_host or (value.kind is Kind.NUMBER and not value.integer):
            raise CannotBatchError(UNKNOWN_INDEX)
        if value.kind is Kind.NUMBER:
            found.items.append(at_dimension(self.of.aligner.index(value, asked), deepest))
        elif value.is_listed:
            made = f"torch.as_tensor({ast.unparse(value.code)}, device={owned(asked)}.device)"
            found.items.append(at_dimension(parse(made), deepest))
        elif value.kind in {Kind.ROWS, Kind.ENTRY} and not value.axis:
            rank = value.rank if isinstance(value.rank, int) else 0
            if not isinstance(value.rank, int):
                known = self.of.facts.shapes.least_rank
                if value.rank is not None and known(value.rank.base) + value.rank.more > 0:
                    raise CannotBatchError(UNKNOWN_INDEX)  # ``x[i, y.topk(k, 1)[1][i]]``
                if self._holds_lists(value.code) or self.of.facts.dtype(value.code) == "bool":
                    raise CannotBatchError(UNKNOWN_INDEX)
                self.of.conditions["number-index"] = None
                before = sum(n.startswith("index") for n in self.of.shown)
                self.of.shown[f"index{before or ''}"] = value.code
            elif value.rank not in {0, deepest}:
                raise CannotBatchError(UNKNOWN_INDEX)
            elif (
                rank and self.of.facts.dtype(value.code) is self.of.facts.dtype(value.asked) is None
            ):
                self.of.conditions["integer-index"] = None  # a mask of the round picks otherwise
                self.of.shown[f"picks{len(self.of.shown)}"] = value.asked
            found.items.append(at_dimension(value.code, deepest - rank))
            found.by_tensor |= not self._is_of_host(value.code)
        else:
            raise CannotBatchError(UNKNOWN_INDEX)
        found.consumed += 1


def _is_negative(item: ast.expr) -> bool:
    return isinstance(item, ast.UnaryOp) and isinstance(item.operand, ast.Constant)


def _plus(code: ast.expr, more: int) -> ast.expr:
    """Return a number and an integer, added as one would write it."""
    if not more:
        return code
    match code:
        case ast.Constant(int(number)):
            return ast.Constant(number + more)
        case ast.BinOp(left, ast.Add(), ast.Constant(int(number))) if number + more >= 0:
            return _plus(left, number + more)
    op: ast.operator = ast.Add() if more > 0 else ast.Sub()
    return ast.BinOp(code, op, ast.Constant(abs(more)))
