"""What an expression in a loop is as a function of the loop variable."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from npufix.rewriters.facts.ranks import Rank, RelativeRank

if TYPE_CHECKING:
    from npufix.rewriters.graph.nodes import Node

NO_TENSOR = "it runs over a list of numbers"
OF_A_LIST = "it runs over a list of tensors, which may have different shapes"
LENGTHS = "its rows have different lengths"
SHARED = "what it writes to may share memory with what it reads"
UNKNOWN_RANK = "how many dimensions a tensor in it has is not known"


class CannotBatchError(Exception):
    """The loop stays as it is, for the reason given: a whole sentence, the same for all loops."""


class Kind(Enum):
    """How a value depends on the round of the loop."""

    SAME = "same"
    """It does not: a tensor or anything else from outside."""
    NUMBER = "number"
    """A Python number computed from the counter: ``i``, ``(i + 1) / n``."""
    ENTRY = "entry"
    """One number of each round, out of a tensor or a list: ``n[i]``. Counts and indexes alone."""
    REPEATED = "repeated"
    """Each row as often as a number of its round says, joined along the first dimension."""
    ROWS = "rows"
    """A tensor of each round; all of them lie along ``axis`` of one tensor."""


@dataclass(frozen=True)
class Part:
    """Of which elements a round has a row: some along one dimension of it."""

    known: str
    """The name of a mask, of the rounds and the elements along that dimension."""
    dim: int
    """Which dimension of one round."""
    bounds: str
    """Where a part begins and ends."""
    outside: str | None = None
    """The number where a row has nothing: "" if any, ``None`` if it is what stood there."""


@dataclass(frozen=True)
class Value:
    """An expression for all rounds at once."""

    kind: Kind
    code: ast.expr
    """SAME, NUMBER: as it is written. ENTRY, ROWS: what holds those of all rounds."""
    rank: Rank = None
    """Number of dimensions of the tensor of one round; 0 also for a number; ``None`` if unknown."""
    axis: int = 0
    """ROWS: which dimension of ``code`` counts the rounds."""
    fresh: bool = False
    """Whether ``code`` is a tensor of its own, which shares memory with no other."""
    integer: bool = False
    """NUMBER: whether it is an int."""
    offset: int | None = None
    """NUMBER: ``c`` where it is the counter plus ``c``."""
    source: ast.expr | None = None
    """A tensor of the dtype and on the device of this one, if ``code`` is too long to ask."""
    is_listed: bool = False
    """ENTRY: whether ``code`` makes a list of what Python computes in each round."""
    is_cut: bool = False
    """ENTRY: whether it is an integer, but ``code`` may have fractions: ``int(n[i])``."""
    part: Part | None = None
    """ROWS: what of each row there is, if that is not all: ``x[i, :n[i]]``."""

    @property
    def asked(self) -> ast.expr:
        """Return a short expression to ask for device and dtype."""
        return self.source or self.code


@dataclass(frozen=True)
class Domain:
    """``for i in range(start, stop)``; of a loop over a tensor ``stop`` is its length."""

    start: int
    stop: ast.expr
    stop_node: Node
    names: dict[str, Value] = field(default_factory=dict)
    """What the names of the target are."""
    over: tuple[ast.expr, ast.expr] | None = None
    """The target and what it takes, as they are written."""
    shown: dict[str, ast.expr] = field(default_factory=dict)
    """What its conditions are about."""
    conditions: tuple[str, ...] = ()


def shift(rank: Rank, by: int) -> Rank:
    """Return a number of dimensions and some more."""
    if isinstance(rank, RelativeRank):
        return RelativeRank(rank.base, rank.more + by)
    return None if rank is None else rank + by


def difference(left: Rank, right: Rank) -> int | None:
    """Return how many dimensions more one has than the other, ``None`` if that is not known."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    if isinstance(left, RelativeRank) and isinstance(right, RelativeRank):
        return left.more - right.more if left.base is right.base else None
    return None


def name(text: str) -> ast.Name:
    """Return a name that is read."""
    return ast.Name(text, ast.Load())


def owned(code: ast.expr) -> str:
    """Return the text of what something is asked of: ``(a + b)`` of ``(a + b).dtype``."""
    atoms = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
    text = ast.unparse(code)
    return text if isinstance(code, atoms) else f"({text})"


def parse(text: str) -> ast.expr:
    """Return the syntax of an expression."""
    return ast.parse(text, mode="eval").body


def behind_rounds(dim: int) -> int:
    """Return a dimension of one round in a tensor of all rounds, which stand in front."""
    return dim + 1 if dim >= 0 else dim


def view_in_front(vector: ast.expr, dims: str) -> ast.expr:
    """Return a vector before as many dimensions as code says: ``v.view(-1, *[1] * x.dim())``."""
    ones = parse(f"f(-1, *[1] * {dims})")
    assert isinstance(ones, ast.Call)  # noqa: S101 - it was written so
    return method(vector, "view", *ones.args)


def method(owner: ast.expr, called: str, *args: ast.expr | int) -> ast.Call:
    """Return ``owner.called(*args)``; numbers become literals."""
    given = [literal(a) if isinstance(a, int) else a for a in args]
    return ast.Call(ast.Attribute(owner, called, ast.Load()), given, [])


def is_true(code: ast.expr | None) -> bool:
    """Tell whether code is ``True``."""
    return isinstance(code, ast.Constant) and code.value is True


def literal(number: int) -> ast.expr:
    """Return a number as it is written: ``-1`` is two tokens."""
    return parse(str(number))


def subscript(base: ast.expr, items: list[ast.expr]) -> ast.expr:
    """Return ``base[items]``."""
    index = items[0] if len(items) == 1 else ast.Tuple(items, ast.Load())
    return ast.Subscript(base, index, ast.Load())


def everything() -> ast.Slice:
    """Return ``:``."""
    return ast.Slice()


def owner_of(code: ast.expr) -> ast.expr:
    """Return a tensor whose dtype and device a view of it has: ``x`` of ``x[:, 0]``."""
    match code:
        case ast.Subscript(base, ast.Tuple() | ast.Slice()):
            return owner_of(base)
    return code


def new_axis() -> ast.expr:
    """Return ``None`` as an index."""
    return ast.Constant(None)


def at_dimension(vector: ast.expr, after: int) -> ast.expr:
    """Return a vector with ``after`` new dimensions behind it: ``v[:, None, None]``."""
    if after == 1 and isinstance(vector, ast.Call):
        return method(vector, "unsqueeze", 1)  # which is easier to read behind a long call
    return subscript(vector, [everything(), *[new_axis()] * after]) if after > 0 else vector


def like(value: Value, code: ast.expr, *, fresh: bool) -> Value:
    """Return another value in the same places."""
    return Value(
        value.kind, code, value.rank, value.axis, fresh=fresh, source=value.source or value.code
    )


def integer(code: ast.expr) -> int | None:
    """Return an int that is written out."""
    match code:
        case ast.Constant(int(number)):
            return number
        case ast.UnaryOp(ast.USub(), ast.Constant(int(number))):
            return -number
    return None
