"""Elements that a loop moves from one row to another, which masks of all rows move at once.

::

    for i in range(b):                          packed[torch.arange(w) < n.reshape(-1, 1)] = (
        packed[i, : n[i]] = x[i, mask[i]]           x[mask]
                                                )

A mask of two dimensions picks row by row, so both sides list the elements in the same order.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import Pieces
from npufix.rewriters.edit.loops.given.values import method, parse
from npufix.rewriters.graph.modules.syntax import list_names, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop

_CALLED_MASK = re.compile(r"(^|_)(masks?|valids?|keeps?|pad(ding)?s?)(_|$)")
_PLAIN = (ast.Name, ast.Attribute)


@dataclass
class _Moves:
    """The rows of a loop, and what has been asked so far."""

    facts: Facts
    counter: str
    stop: ast.expr
    conditions: dict[str, None] = field(default_factory=dict)
    shown: dict[str, ast.expr] = field(default_factory=dict)

    def ask(self, condition: str, name: str = "", code: ast.expr | None = None) -> None:
        """Ask for a condition, about a value if one is given: the first of them by its name."""
        self.conditions[condition] = None
        if code is not None:
            self.shown.setdefault(name, code)

    def rows_of(self, code: ast.expr) -> str:
        """Return all rows that the rounds take: ``x``, or ``x[:n]`` where it may have more."""
        node, stop = self.facts.node(code), self.facts.node(self.stop)
        spans = node is not None and stop is not None and self.facts.spans(stop, node, 0)
        return ast.unparse(code) if spans else f"{ast.unparse(code)}[:{ast.unparse(self.stop)}]"


def read_moved(loop: Loop, facts: Facts) -> Pieces | None:
    """Return what a loop is that only moves elements of rows, ``None`` for any other loop."""
    match loop.items, loop.target:
        case ast.Call(ast.Name("range"), [stop], []), ast.Name(counter):
            moves = _Moves(facts, counter, stop)
        case _:
            return None
    if not loop.is_statement or loop.lists or loop.total or loop.picked:
        return None
    node = facts.node(stop)
    if node is None or not facts.is_count(node):
        moves.ask("nonnegative-count")
    statements = _read_block(moves, loop.body)
    written = [ast.unparse(t) for t in _list_written(loop.body)]
    named = [ast.unparse(n) for n in walk(*loop.body) if isinstance(n, _PLAIN)]
    if not statements or sum(name in written for name in named) != len(written):
        return None  # what one statement writes another one reads
    return Pieces(statements, tuple(moves.conditions), moves.shown)


def _list_written(body: Sequence[ast.stmt]) -> list[ast.expr]:
    targets = [n.targets[0] for n in walk(*body) if isinstance(n, ast.Assign)]
    return [t.value for t in targets if isinstance(t, ast.Subscript)]


def _read_block(moves: _Moves, body: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """Return the statements for all rows, ``None`` if a round does anything else."""
    made: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.If(test, inner, []) if moves.counter not in list_names(test):
                block = _read_block(moves, inner)
                if block is None or any(isinstance(n, ast.Call) for n in ast.walk(test)):
                    return None
                made.append(ast.If(test, block, []))
            case ast.Assign([ast.Subscript() as target], ast.Subscript() as source):
                moved = _read_move(moves, target, source)
                if moved is None:
                    return None
                made.append(moved)
            case _:
                return None
    return made


def _read_move(moves: _Moves, target: ast.Subscript, source: ast.Subscript) -> ast.stmt | None:
    facts = moves.facts
    written, read = _row_part(target, moves.counter), _row_part(source, moves.counter)
    if written is None or read is None:
        return None
    if isinstance(read[1], ast.Slice) and ast.unparse(read[1]) == ast.unparse(written[1]):
        return None  # the same elements are chosen by ``torch.where``, without counting them
    bases = written[0], read[0]
    known = [facts.is_tensor(base) for base in bases]
    nodes = [facts.node(base) for base in bases]
    if False in known or nodes[0] is None or nodes[1] is None:
        return None
    picks = [_mask_of(moves, base, part) for base, part in (written, read)]
    if picks[0] is None or picks[1] is None:
        return None
    shares = facts.may_share(nodes[0], nodes[1])
    if shares:
        return None
    if shares is None:
        moves.ask("separate-memory")
    if None in known:
        moves.ask("is-tensor")
    moves.ask("as-many-of-each-row")
    for name, pick in (("written", picks[0]), ("taken", picks[1])):
        number = sum(known.startswith(name) for known in moves.shown)
        moves.shown[f"{name}{number}"] = parse(pick)
    text = f"{moves.rows_of(bases[0])}[{picks[0]}] = {moves.rows_of(bases[1])}[{picks[1]}]"
    return ast.parse(text).body[0]


def _row_part(code: ast.Subscript, counter: str) -> tuple[ast.expr, ast.expr] | None:
    """Return ``x`` and ``mask[i]`` of ``x[i, mask[i]]`` and ``x[i][mask[i]]``."""
    match code:
        case ast.Subscript(base, ast.Tuple([ast.Name(row), part])):
            pass
        case ast.Subscript(ast.Subscript(base, ast.Name(row)), part):
            pass
        case _:
            return None
    return (base, part) if row == counter and isinstance(base, _PLAIN) else None


def _mask_of(moves: _Moves, base: ast.expr, part: ast.expr) -> str | None:
    """Return the mask of all rows for what picks elements of one."""
    match part:
        case ast.Subscript(mask, ast.Name(row)) if row == moves.counter and isinstance(
            mask, _PLAIN
        ):
            return _of_mask(moves, mask)
        case ast.Slice(None, ast.expr() as upper, None):
            return _of_length(moves, base, upper, "{positions} < {lengths}")
        case ast.Slice(ast.UnaryOp(ast.USub(), lower), None, None):
            width = f"{ast.unparse(base)}.shape[1]"
            return _of_length(moves, base, lower, f"{{positions}} >= {width} - {{lengths}}")
    return None


def _of_mask(moves: _Moves, mask: ast.expr) -> str | None:
    dtype = moves.facts.dtype(mask)
    called = _CALLED_MASK.search(ast.unparse(mask).rpartition(".")[2]) is not None
    if dtype not in {None, "bool"} or not (called or moves.facts.is_mask(mask)):
        return None
    if dtype is None:
        moves.ask("boolean-mask", "mask", mask)
    return moves.rows_of(mask)


def _of_length(moves: _Moves, base: ast.expr, length: ast.expr, compared: str) -> str | None:
    match length:
        case ast.Call(ast.Name("int"), [inner], []) | ast.Call(
            ast.Attribute(inner, "item"), [], []
        ):
            return _of_length(moves, base, inner, compared)
        case ast.Subscript(vector, ast.Name(row)) if row == moves.counter and isinstance(
            vector, _PLAIN
        ):
            pass
        case _:
            return None
    rows, device = moves.rows_of(vector), f"{ast.unparse(base)}.device"
    if not moves.facts.is_tensor(vector):
        rows = f"torch.as_tensor({rows}, device={device})"
    known = parse(f"torch.as_tensor({ast.unparse(vector)})")
    if "<" in compared:
        moves.ask("nonnegative-lengths", "index", known)
    else:  # ``x[i, -0:]`` is all of it
        moves.ask("positive-lengths", "counted", known)
    positions = f"torch.arange({ast.unparse(base)}.shape[1], device={device})"
    return compared.format(
        positions=positions, lengths=ast.unparse(method(parse(rows), "reshape", -1, 1))
    )
