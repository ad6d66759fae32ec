"""Where the rounds of a loop are in a tensor: an index of all of them at once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.subscripts import is_all, trim
from npufix.rewriters.edit.loops.given.values import integer, method, subscript

if TYPE_CHECKING:
    from npufix.rewriters.edit.loops.given.values import Value


@dataclass
class Ragged:
    """A slice of another length in each round."""

    dim: int
    """Which of the kept dimensions, the rounds aside."""
    source: int
    """Which dimension of the tensor it is."""
    lower: Value | None
    upper: Value | None


@dataclass
class Place:
    """An index over all rounds at once."""

    items: list[ast.expr] = field(default_factory=list)
    axis: int = 0
    """Where the rounds are among what is kept."""
    kept: int = 0
    """Dimensions that the items keep in one round."""
    consumed: int = 0
    """Dimensions of the tensor that the items are about, that of the rounds aside."""
    is_view: bool = True
    ragged: list[Ragged] = field(default_factory=list)
    offset: int | None = None
    """Where the round is the row itself: the row is the counter plus this."""
    source_dim: int = 0
    """Which dimension of the tensor the rounds are."""
    is_known: bool = True
    """Whether ``kept`` is sure."""
    by_tensor: bool = False
    """Whether a tensor says which rows: ``table[i]`` read it for each ``i`` of a tensor."""
    piece: str = ""
    """Which piece of a dimension each round has: alike where two indexes take the same."""
    pieces: tuple[ast.expr, ast.expr] | None = None
    """How many pieces a dimension has, one a round, and how long each is."""

    def of(self, base: ast.expr) -> ast.expr:
        """Return the rows of all rounds."""
        index = trim(self.items)
        rows = subscript(base, index) if index else base
        if self.pieces is None:
            return rows
        first = self.axis - (integer(self.pieces[0]) == -1)
        return method(rows, "unflatten", first, ast.Tuple([*self.pieces], ast.Load()))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor, in its order."""
        return all(isinstance(i, ast.Slice) and is_all(i) for i in self.items)


def name_piece(item: ast.Slice, size: ast.expr, dim: int) -> str:
    """Return what is alike where two indexes take the same piece in each round."""
    return f"{dim} {'by' if item.step is None else 'every'} {ast.unparse(size)}"
