"""The body of a loop, statement by statement, for all rounds at once."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.adding import add_to_picked, adds_to_picked
from npufix.rewriters.edit.loops.choosing import (
    BRANCH,
    choose,
    has_mean_of_part,
    mask_among,
    write_masked,
)
from npufix.rewriters.edit.loops.expressions import UNKNOWN_CALL, Expressions
from npufix.rewriters.edit.loops.filling import copy_rows, fill, read_copied
from npufix.rewriters.edit.loops.given.places import Place, name_piece
from npufix.rewriters.edit.loops.given.subscripts import flatten, spell_items
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    OF_A_LIST,
    SHARED,
    UNKNOWN_RANK,
    CannotBatchError,
    Kind,
    Value,
    difference,
    everything,
    method,
    new_axis,
    parse,
    shift,
    subscript,
)
from npufix.rewriters.edit.loops.indexing import OTHER_ROUND
from npufix.rewriters.edit.loops.listed import list_for_all, take_borders
from npufix.rewriters.edit.loops.rows.domains import list_other_rows
from npufix.rewriters.edit.loops.rows.joining import is_only_joined, sum_into
from npufix.rewriters.edit.loops.rows.order import (
    EFFECT,
    IN_PLACE,
    RECURRENCE,
    InFirst,
    converts,
    is_one_number,
    list_measured,
    list_totals,
    list_written,
    require_no_recurrence,
)
from npufix.rewriters.graph.modules.syntax import list_indexes, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.values import Domain
    from npufix.rewriters.facts.ranks import Rank

EARLY_EXIT = "it may end, or skip a part, before the last round"
_NO_ROWS = None, -1
"""Rows that nobody reads."""
_OUT = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Try, ast.With, ast.While)


class Body:
    """What the statements of one loop become."""

    def __init__(self, domain: Domain, facts: Facts, code: Sequence[ast.stmt]) -> None:
        self.facts = facts
        self.of = Expressions(domain, facts)
        self.of.measured = frozenset(list_measured(code))
        self.code = code
        self.kept: list[ast.stmt] = []
        """Statements about numbers of the host that stay in a loop of their own."""
        self.bound: set[str] = set()
        """The names that it binds, those of its target aside."""
        self.writes: list[ast.expr] = []
        self.shown_by_views: set[str] = set()
        """Names of which others may show the memory."""
        self.totals: set[str] = set()
        """Names of the function that rounds add to, and do nothing else with."""
        self.depth = 0
        """In how many loops that stay inside."""
        self.counted: set[str] = set()
        """What counts the rounds of loops that stay inside."""

    def run(self, code: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements for all rounds.

        Raises:
            CannotBatchError: there are none that compute the same.

        """
        self._require_own_rows(code)
        self._find_writes(code)
        self.totals = list_totals(code) - set(self.of.env)
        require_no_recurrence(code, set(self.of.env) | self.totals)
        made = list(self.block(code))
        self.require_apart()
        return made

    def block(self, code: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield what some statements become."""
        for statement in code:
            new = list(self._statement(statement))
            yield from self._vectors()
            yield from new

    def _inner(self, code: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return what some statements become that may not run: their masks are not there behind."""
        before = dict(self.of.parts.names)
        made = list(self.block(code))
        self.of.parts.names = before
        return made

    def _vectors(self) -> Iterator[ast.stmt]:
        """Yield what makes vectors of the numbers that were met since."""
        yield from self.of.aligner.statements
        self.of.aligner.statements.clear()

    def require_apart(self) -> None:
        """Refuse, or ask, where what is read may be what is written."""
        for written in self.writes:
            target = self.facts.node(written)
            own = (r for r in self.of.indexer.own_reads if ast.unparse(r) != ast.unparse(written))
            for read in (*self.of.indexer.reads, *own, *list_other_rows(self.of)):
                node = self.facts.node(read)
                if target is None or node is None:
                    raise CannotBatchError(SHARED)
                shares = self.facts.may_share(target, node)
                if shares:
                    raise CannotBatchError(SHARED)
                if shares is None and self.facts.rank(read) != 0:
                    self.of.conditions["separate-memory"] = None

    def show_assumed(self) -> None:
        """Ask for the numbers of dimensions that nobody has proven."""
        if self.facts.counted:
            self.of.conditions["counts-are-numbers"] = None
        inner = (self.bound | set(self.of.env)) - self._list_batched()
        asked = {f"tensor{number}": code for number, code in enumerate(self.of.tensors)}
        asked |= {f"deep{number}": code for number, code in enumerate(self.of.deep)}
        for group, codes in enumerate(self.of.alike):
            asked |= {f"alike{group}_{number}": code for number, code in enumerate(codes)}
        for name, row in asked.items():
            code = InFirst(self.counted).visit(copy.deepcopy(row))
            if not list_names(code) & inner:
                self.of.shown[name] = code
        for number, (code, rank) in enumerate(self.facts.told):
            self.of.conditions["known-dimensions"] = None
            if not list_names(code) & inner:
                self.of.shown[f"dims{rank}_{number}"] = code

    def _list_batched(self) -> set[str]:
        """Return the names that a statement for all rounds binds, which a question may read."""
        return {
            name
            for name, value in self.of.env.items()
            if isinstance(value.code, ast.Name) and value.code.id == name and name in self.bound
        }

    def _find_writes(self, code: Sequence[ast.stmt]) -> None:
        for target in list_written(code):
            base, items = self.parts(target)
            if not isinstance(base, (ast.Name, ast.Attribute)) or self.of.depends(base):
                raise CannotBatchError(EFFECT)
            if self.facts.is_tensor(base) is False:
                raise CannotBatchError(EFFECT)
            self.writes.append(base)
            place = self._find_rows(items)
            key = ast.unparse(base)
            if self.of.own_rows.setdefault(key, place) != place:
                if not is_one_number(code, key):
                    raise CannotBatchError(OTHER_ROUND)
                self.of.own_rows[key] = _NO_ROWS  # ``m[i, n + i] = 0; m[n + i, i] = 0``

    def _require_own_rows(self, code: Sequence[ast.stmt]) -> None:
        """Refuse ``x[..., :i]`` of what row ``i`` is written to, whatever dimension that is."""
        written = {ast.unparse(flatten(target)[0]) for target in list_written(code)}
        for node in (n for statement in code for n in walk(statement) if written):
            match node:
                case ast.Subscript(base, index, ast.Load()) if ast.unparse(base) in written:
                    items = list_indexes(index)
                    cuts = [i for i in items if isinstance(i, ast.Slice) and self.of.depends(i)]
                    grows = any(self.of.indexer.piece(i) is None for i in cuts)
                    if grows and not any(
                        self.of.depends(i) for i in items if not isinstance(i, ast.Slice)
                    ):
                        raise CannotBatchError(OTHER_ROUND)

    def parts(self, target: ast.Subscript) -> tuple[ast.expr, list[ast.expr]]:
        """Return what is written to, and the items of the index."""
        base, index = flatten(target)
        return base, spell_items(index, self.facts.rank(base))

    def _find_rows(self, items: list[ast.expr]) -> tuple[int | str | None, int]:
        """Return which rows an index takes, as far as that can be said before all is read."""
        for dim, item in enumerate(items):
            if isinstance(item, ast.Slice) and (size := self.of.indexer.piece(item)):
                return name_piece(item, size, dim), -1
            if isinstance(item, ast.Slice) or not self.of.depends(item):
                continue
            if self.facts.is_mask(item):
                continue  # ``m[near, i]``
            if isinstance(item, ast.Name) and item.id in self.of.env:
                return self.of.env[item.id].offset, dim
            value = self.of.read(item)
            return (value.offset if value.kind is Kind.NUMBER else None), dim
        raise CannotBatchError(OTHER_ROUND)

    def _statement(self, code: ast.stmt) -> Iterator[ast.stmt]:  # noqa: C901, PLR0912 - one case a syntax
        match code:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if (
                value is not None
            ):
                yield from self._bind(name, value, code)
            case ast.Assign([ast.Tuple(targets)], value):
                yield from self._bind_all(targets, value)
            case ast.Assign([ast.Subscript() as target], value):
                yield from self._write(target, value, None)
            case ast.AugAssign(ast.Name(name), op, value) if name in self.totals:
                yield self._add_up(name, op, value)
            case ast.AugAssign(ast.Name(name), op, value) if name in self.of.env:
                yield self._change(name, op, value)
            case ast.AugAssign(ast.Subscript() as target, op, value):
                yield from self._write(target, value, op)
            case ast.Expr(ast.Call(ast.Attribute(ast.Subscript() as target, "fill_"), [value], [])):
                yield from self._write(target, value, None)
            case ast.Expr(
                ast.Call(ast.Attribute(ast.Subscript() as target, called), [value], [])
            ) if called in IN_PLACE:
                yield from self._write(target, value, IN_PLACE[called])
            case ast.Expr(ast.Call(ast.Attribute(ast.Subscript() as target, "zero_"), [], [])):
                yield from self._write(target, ast.Constant(0), None)
            case ast.Assert(test):
                self._keep(code, test)
            case ast.For(target, items, body, []) if not self.of.depends(items):
                self.of.read(items)
                match target, items:
                    case ast.Name(counter), ast.Call(ast.Name("range"), [_], []):
                        self.counted.add(counter)
                self.depth += 1
                yield ast.For(target, items, self._inner(body), [], lineno=0)
                self.depth -= 1
            case ast.If(test, body, orelse) if not self.of.depends(test):
                if any(
                    isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
                    for s in (*body, *orelse)
                ):
                    raise CannotBatchError(BRANCH)
                self.of.read(test)
                yield ast.If(test, self._inner(body), self._inner(orelse))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [made], [])):
                yield self._append(name, made)
            case ast.Pass() | ast.Expr(ast.Constant()):
                return
            case ast.If(test, body, orelse):
                yield from choose(self, test, body, orelse)
            case _ if isinstance(code, _OUT):
                raise CannotBatchError(EARLY_EXIT)
            case _:
                raise CannotBatchError(EFFECT)

    def _bind(self, name: str, code: ast.expr, statement: ast.stmt) -> Iterator[ast.stmt]:
        value = self.of.read(code, parts=True)
        if converts(code, self.of.own_rows):
            raise CannotBatchError(EFFECT)  # ``n[:rows].long()`` may be ``n``, which changes
        if has_mean_of_part(code) or list_names(code) & self.of.means:
            self.of.means.add(name)
        if not value.fresh:
            self.shown_by_views |= list_names(code)
        self.bound.add(name)
        if value.kind is Kind.SAME:
            self.of.env.pop(name, None)
            yield statement
        elif value.kind is Kind.NUMBER:
            self.of.aligner.numbers[name] = value.code
            target = ast.Name(name, ast.Load())
            self.of.env[name] = Value(
                Kind.NUMBER, target, 0, integer=value.integer, offset=value.offset
            )
        elif value.kind in {Kind.ENTRY, Kind.REPEATED} or isinstance(value.code, ast.Name):
            self.of.env[name] = value
            if isinstance(value.code, ast.ListComp) and value.is_listed:
                self.of.listed[name] = value.code.elt
        else:
            yield from self._vectors()
            yield ast.Assign([ast.Name(name, ast.Store())], value.code, lineno=0)
            own = ast.Name(name, ast.Load())
            fresh = value.fresh and not isinstance(code, ast.Name)
            self.of.env[name] = Value(
                Kind.ROWS, own, value.rank, value.axis, fresh=fresh, part=value.part
            )

    def _add_up(self, name: str, op: ast.operator, code: ast.expr) -> ast.stmt:
        """Return what adds to a name the values of all rounds."""
        value = self.of.aligner.tensor(self.of.read(code))
        if value.kind is not Kind.ROWS:
            raise CannotBatchError(EFFECT)
        self.of.conditions["adds-floats"] = None
        added = sum_into(name, code, value, self.of, in_place=True)
        return ast.AugAssign(ast.Name(name, ast.Store()), op, added)

    def _append(self, name: str, code: ast.expr) -> ast.stmt:
        """Return what puts the rows of all rounds into a list that is only joined later."""
        value = self.of.aligner.in_front(self.of.aligner.tensor(self.of.read(code)))
        if value.kind is not Kind.ROWS or self.depth or not is_only_joined(self.facts, name):
            raise CannotBatchError(EFFECT)
        rows = method(value.code, "unbind")
        return ast.Expr(method(ast.Name(name, ast.Load()), "extend", rows))

    def _change(self, name: str, op: ast.operator, code: ast.expr) -> ast.stmt:
        """Return what changes a tensor that the round has computed: ``score *= weight``."""
        own = self.of.env[name]
        if own.kind is not Kind.ROWS or own.part or not own.fresh or name in self.shown_by_views:
            raise CannotBatchError(EFFECT)  # a view changes what it shows
        (first, second), whole = self.of.aligner.together(own, self.of.read(code))
        known = whole.rank is not None and (whole.rank, whole.axis) == (own.rank, own.axis)
        if not known or first is not own.code:
            raise CannotBatchError(UNKNOWN_RANK)
        return ast.AugAssign(ast.Name(name, ast.Store()), op, second)

    def _bind_all(self, targets: list[ast.expr], code: ast.expr) -> Iterator[ast.stmt]:
        """Bind the names of ``a, b = x[i], y[i]`` or ``best, at = x[i].max(0)``."""
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(set(names)) != len(targets):
            raise CannotBatchError(EFFECT)
        match code:
            case ast.Tuple(values) if len(values) == len(names):
                if any(list_names(v) & set(names[:at]) for at, v in enumerate(values)):
                    raise CannotBatchError(RECURRENCE)  # ``a, b = b, a``
                for name, value in zip(names, values, strict=True):
                    target = ast.Name(name, ast.Store())
                    yield from self._bind(name, value, ast.Assign([target], value, lineno=0))
            case ast.Call() if self.of.together.returns_several(code):
                whole = self.of.together.several(code)
                self.bound |= set(names)
                yield from self._vectors()
                made = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
                yield ast.Assign([made], whole.code, lineno=0)
                for name in names:
                    own = ast.Name(name, ast.Load())
                    self.of.env[name] = Value(Kind.ROWS, own, whole.rank, whole.axis)
            case ast.expr():
                yield from self._take_apart(names, code)

    def _take_apart(self, names: list[str], code: ast.expr) -> Iterator[ast.stmt]:
        """Bind the names of ``x, y = points[i]``: as many as a row is long, which Python asks."""
        if borders := take_borders(names, code, self.of):
            self.bound |= set(names)
            self.of.listed.update(borders)
            self.of.env.update({n: list_for_all(c, self.of.domain) for n, c in borders.items()})
            return
        whole = self.of.aligner.tensor(self.of.read(code))
        if whole.kind is not Kind.ROWS:
            raise CannotBatchError(EFFECT)
        self.bound |= set(names)
        yield from self._vectors()
        first = 0 if whole.axis else 1
        made = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        parts = ast.Call(ast.Attribute(whole.code, "unbind", ast.Load()), [ast.Constant(first)], [])
        yield ast.Assign([made], parts, lineno=0)
        for name in names:
            own = ast.Name(name, ast.Load())
            axis = whole.axis - 1 if whole.axis else 0
            self.of.env[name] = Value(Kind.ROWS, own, shift(whole.rank, -1), axis)

    def _keep(self, code: ast.Assert, test: ast.expr) -> None:
        """Leave an assertion about numbers where it is, in a loop before."""
        if self.bound & list_names(test) or self.of.own_rows.keys() & {
            ast.unparse(n) for n in walk(test) if isinstance(n, ast.expr)
        }:
            raise CannotBatchError(EFFECT)
        match test:
            case ast.Compare(left, [ast.Gt() | ast.GtE()], [ast.Constant(int(least))]) if (
                least >= 0
            ):
                if self.of.depends(left):
                    self.of.positive.add(ast.unparse(self.of.read(left).code))
        if any(isinstance(n, ast.Call) for n in walk(test)):
            raise CannotBatchError(UNKNOWN_CALL)
        self.kept.append(code)

    def _write(
        self, target: ast.Subscript, code: ast.expr, op: ast.operator | None
    ) -> Iterator[ast.stmt]:
        base, items = self.parts(target)
        if mask_among(self.of, items) is not None:
            yield from write_masked(self, target, code, op)
            return
        place = self.of.indexer.place(base, items, None, base)
        if place.ragged and op is None and (copied := read_copied(self, items, code)):
            self._require_tensor(base, target)
            self._require_tensor(copied, code)
            yield from copy_rows(self, base, place, copied)
            return
        rank = self.facts.rank(base)
        own = shift(rank, place.kept - place.consumed) if place.is_known else None
        self.of.expected = own if isinstance(own, int) else None
        self.of.carrier = base
        value = self.of.read(code)
        self.of.expected = self.of.carrier = None
        if adds_to_picked(self, base, items, op):
            self._require_tensor(base, target)
            yield add_to_picked(self, base, place, value, op)
            return
        self.of.indexer.require_own_rows(items)
        self._require_tensor(base, target)
        if place.ragged:
            if op is not None:
                raise CannotBatchError(LENGTHS)
            yield from fill(self, base, place, value)
            return
        new = self.fit(value, place, own, base)
        whole = place.is_whole
        written = subscript(base, [everything()] if whole else place.items)
        if place.pieces is not None:
            written = subscript(place.of(base), [everything()])
        assert isinstance(written, ast.Subscript)  # noqa: S101 - it was made so
        written.ctx = ast.Store()
        if op is None:
            yield ast.Assign([written], new, lineno=0)
        else:
            yield ast.AugAssign(written, op, new)

    def _require_tensor(self, base: ast.expr, code: ast.expr) -> None:
        """Ask whether ``m`` of ``m[i, :n]`` is a tensor; ``m[i][:n]`` may be of a list of rows."""
        if self.facts.is_tensor(base) is not True:
            if not (isinstance(code, ast.Subscript) and isinstance(code.slice, ast.Tuple)):
                raise CannotBatchError(OF_A_LIST)
            self.of.ask_for_tensor(base)

    def fit(  # noqa: C901, PLR0911, PLR0912 - one case a kind
        self, value: Value, place: Place, own: Rank, base: ast.expr
    ) -> ast.expr:
        """Return the new values of rows that have ``own`` dimensions each."""
        if value.kind is Kind.SAME:
            if value.rank == 0 or not place.axis:
                return value.code
            room = difference(own, value.rank)
            if room is None or room < place.axis:
                raise CannotBatchError(UNKNOWN_RANK)
            return value.code
        if value.kind is Kind.NUMBER:
            if not isinstance(own, int):
                raise CannotBatchError(UNKNOWN_RANK)
            return self.of.aligner.vector(value, own - place.axis, base)
        if value.kind is Kind.ENTRY:
            # ``scores[i, chosen[i]] = new[i]``: one number, or as many as a row has
            if own != 0 or (value.rank != 0 and "number-index" in self.of.conditions):
                raise CannotBatchError(UNKNOWN_RANK)
            name = ast.unparse(base)
            where = f"dtype={name}.dtype, device={name}.device"
            if value.is_cut:
                return parse(f"torch.as_tensor({ast.unparse(value.code)}).long().to({where})")
            return parse(f"torch.as_tensor({ast.unparse(value.code)}, {where})")
        if value.axis == place.axis and value.rank == own and own is not None:
            return value.code
        if place.axis:
            known = own is not None and value.rank == own
            differs = not known and difference(own, value.rank) is not None
            if differs or value.axis not in {0, place.axis}:
                raise CannotBatchError(UNKNOWN_RANK)
            moved = value.code if value.axis else method(value.code, "movedim", 0, place.axis)
            if not known:
                self._ask_for_shape(place, base, moved)
            return moved
        front = self.of.aligner.in_front(value)
        more = difference(own, front.rank)
        if more is None:
            self._ask_for_shape(place, base, front.code)
            return front.code
        missing = [new_axis()] * max(0, more)
        return subscript(front.code, [everything(), *missing]) if missing else front.code

    def _ask_for_shape(self, place: Place, base: ast.expr, new: ast.expr) -> None:
        """Ask whether what is written has the shape of the place it is written to."""
        self.of.conditions["no-broadcasting"] = None
        if place.pieces is None:
            self.of.alike.append([base if place.is_whole else subscript(base, place.items), new])
